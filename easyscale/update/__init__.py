"""Updates of the weights in a `fit()`, and where each keeps the optimizer's state.

base                    the base class
asked                   the updates that users can request, by a name or an instance
in_fit, choosing        the active update of a `fit()`, and its choice
replicated              every worker updates all weights
divided, divided_state  the state is divided over ranks, and whole before and after; these two divide it:
sharded, backup         each worker updates its part; copies of its state at the next worker
served, served_part     servers update, without waiting for all workers; the part of one server
twin                    a copy of an optimizer that works on parts
accumulated             gradients that are summed over several steps
element_wise            detection of optimizers that can work on parts of weights
local, local_steps      workers step independently between rounds; the base class of these, as users request them:
local_sgd, diloco       a round averages all workers' weights; an outer optimizer applies the mean difference
gossip, pairs           a worker averages its weights with another's; how all learn that the data have ended
outer                   a round: the mean difference, and the outer optimizer
states_of_workers       optimizer states that differ between workers
"""

import importlib
from typing import Any

__all__ = ["DiLoCo", "Gossip", "LocalSGD", "available", "get"]

_WHERE = {"DiLoCo": "diloco", "Gossip": "gossip", "LocalSGD": "local_sgd", "available": "asked", "get": "asked"}


def __getattr__(name: str) -> Any:  # lazy: importing Keras takes seconds
    if name in _WHERE:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
