"""Each worker's part of the data.

One file for each kind of data; each says which objects are its own and how to take the part of one worker.
"""

from easyscale.data.shard import shard

__all__ = ["shard"]
