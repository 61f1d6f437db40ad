"""Profiles of a `fit()` over all ranks, as a table, a line of advice and a trace file.

gathered     the recordings of all ranks, gathered on the chief
table        the parts of a step, a row for each rank
advice       the rank that others wait for, and what would help
trace_file   the steps of all ranks, for Perfetto
"""

from easyscale.profiling.advice import advise
from easyscale.profiling.gathered import Recorded, gather
from easyscale.profiling.table import table
from easyscale.profiling.trace_file import write

__all__ = ["Recorded", "advise", "gather", "table", "write"]
