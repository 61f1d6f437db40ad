"""Each worker's part of the data.

One file for each kind of data; each says which objects are its own and how to take the part of one worker. `unshard`
puts the parts in one piece again.
"""

from easyscale.data.shard import shard
from easyscale.data.unshard import unshard

__all__ = ["shard", "unshard"]
