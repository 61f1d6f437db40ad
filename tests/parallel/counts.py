"""What a rank sends in the steps of a `fit()`."""

import keras

import easyscale

__all__ = ["Counts"]

_comm = easyscale.communicator.get()


class Counts(keras.callbacks.Callback):
    """Notes at the begin of each step what this rank has sent so far."""

    def __init__(self):
        super().__init__()
        self.sent = []

    def on_train_batch_begin(self, batch, logs=None):
        self.sent.append(_comm.sent.bytes)

    @property
    def in_steps(self):
        """The bytes of each step but the first, behind which weights are compared, and the last."""
        return [later - earlier for earlier, later in zip(self.sent[1:-1], self.sent[2:], strict=True)]
