"""What workers and servers say to each other before they send vectors."""

import enum

import numpy as np

__all__ = ["Kind", "Reply", "Request"]


class Kind(enum.IntFlag):
    """What a worker wants of a server."""

    END = 0  # it has no more data in this epoch
    PUSH = 1  # a gradient follows
    PULL = 2  # weights shall come


# 48 bytes, before each push and pull. `steps`: how many steps the worker has made in this epoch. `weight`: the number
# of samples of its gradient. `rate`: its learning rate. `stop`: whether a callback of it has said that training stops.
# `flags`: the length of a message before the gradient, in which each variable has a byte, 1 if it has a gradient; or 0
# if there is none, and all have one.
Request = np.dtype([("kind", "i8"), ("steps", "i8"), ("weight", "f8"), ("rate", "f8"), ("stop", "i8"), ("flags", "i8")])

# 16 bytes, before the weights. `steps`: how many steps all workers have made together, if the rule is to make such.
Reply = np.dtype([("steps", "i8"), ("stop", "i8")])
