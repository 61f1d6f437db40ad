"""What updates the weights in a `fit()`, and where the optimizer's state is meanwhile.

base                    what an update has to do
asked                   which updates users can ask for, by a name or an instance
in_fit, choosing        which one is at work in a `fit()`, and why
replicated              every worker updates all weights
divided, divided_state  the state is divided over ranks, and whole before and after; these two divide it:
sharded, backup         each worker updates its part; copies of its state at the next worker
served, served_part     servers update, and wait for no worker; the part of one server
twin                    an optimizer like another, which works on parts
accumulated             gradients that are summed up over several steps
element_wise            which optimizers can work on parts of weights
local, local_steps      workers step alone between rounds; what such updates have in common as users ask for them:
local_sgd, diloco       a round takes the mean of all workers' weights; an outer optimizer applies the mean difference
gossip, pairs           a worker takes the mean of its weights and another one's; how all learn that data have ended
outer                   a round: the mean difference, and the outer optimizer
states_of_workers       the states of optimizers of which each worker has one of its own
"""

import importlib
from typing import Any

__all__ = ["DiLoCo", "Gossip", "LocalSGD", "available", "get"]

_WHERE = {"DiLoCo": "diloco", "Gossip": "gossip", "LocalSGD": "local_sgd", "available": "asked", "get": "asked"}


def __getattr__(name: str) -> Any:  # when a name is first used: Keras takes seconds
    if name in _WHERE:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
