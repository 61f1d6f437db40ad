"""What `easyscale launch` tells the ranks: environment variables, one place for their names.

An argument in the script wins over the variable, which wins over the default.
"""

import os

__all__ = ["EXCHANGE", "RANK_PROCESS", "REPLICATION", "SERVERS", "first"]

EXCHANGE = "EASYSCALE_EXCHANGE"  # name of an exchange; default "auto"
RANK_PROCESS = "EASYSCALE_RANK_PROCESS"  # number of the process that is a rank; its children are none
REPLICATION = "EASYSCALE_REPLICATION"  # "between_graph"
SERVERS = "EASYSCALE_SERVERS"  # number of ranks, the last ones, that serve and do not train; default 0


def first(argument: object, variable: str, default: object) -> object:
    """Return `argument` if it is not `None`, else the environment `variable` if it is set, else `default`."""
    if argument is not None:
        return argument
    return os.environ.get(variable) or default
