"""Where the time of a `fit()` goes: what all ranks have recorded, as a table, a line of advice, and a file of a trace.

gathered     what each rank has recorded, at the chief
table        the parts of a step, a row for each rank
advice       for whom ranks wait, and what would help
trace_file   the steps of all ranks for Perfetto
"""

from easyscale.profiling.advice import advise
from easyscale.profiling.gathered import Recorded, gather
from easyscale.profiling.table import table
from easyscale.profiling.trace_file import write

__all__ = ["Recorded", "advise", "gather", "table", "write"]
