"""Headers that workers and servers send each other before vectors."""

import enum

import numpy as np

__all__ = ["Kind", "Reply", "Request"]


class Kind(enum.IntFlag):
    """The kind of a worker's request."""

    END = 0  # the worker has no more data in this epoch
    PUSH = 1  # a gradient follows
    PULL = 2  # the server replies with weights


# 48 bytes, before each push and pull. `steps`: the number of the worker's steps in this epoch. `weight`: the number of
# samples in its gradient. `rate`: its learning rate. `stop`: whether one of its callbacks has stopped training.
# `flags`: the length of a message before the gradient, with one byte for each variable, 1 if it has a gradient; or 0 if
# there is no such message and all variables have one.
Request = np.dtype([("kind", "i8"), ("steps", "i8"), ("weight", "f8"), ("rate", "f8"), ("stop", "i8"), ("flags", "i8")])

# 16 bytes, before the weights. `steps`: the steps that all workers have made together, 0 if each makes its own.
Reply = np.dtype([("steps", "i8"), ("stop", "i8")])
