"""Communication of a split layer: the rows of all workers to the owners of slices, and results back. NumPy only.

trip       the base class
columns    all rows to all owners; some columns of the results back
rows       some columns of the rows to each owner; summands of the results back
summands   all inputs to all owners; summands of the results back
lookup     numbers to the owners of the rows of a table; these rows back
within     the same within a group of ranks that share a batch, where rows need not travel
moves      the building blocks
"""

from easyscale.parallel.split.trip.columns import Columns
from easyscale.parallel.split.trip.lookup import Lookup
from easyscale.parallel.split.trip.rows import Rows
from easyscale.parallel.split.trip.summands import Summands
from easyscale.parallel.split.trip.trip import Trip
from easyscale.parallel.split.trip.within import WithinGroup, within

__all__ = ["Columns", "Lookup", "Rows", "Summands", "Trip", "WithinGroup", "within"]
