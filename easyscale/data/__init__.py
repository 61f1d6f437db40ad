"""Each worker's part of the data.

One file for each kind of data; each recognizes its objects and takes one worker's part of them. `unshard` puts the
parts together again.
"""

from easyscale.data.shard import shard
from easyscale.data.unshard import unshard

__all__ = ["shard", "unshard"]
