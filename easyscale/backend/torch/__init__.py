"""PyTorch, where all is eager: a step is Python, and what it calls of the host is just called.

backend             the `Backend`
host_calls          where steps call Python with arrays
on_gpus             tensors on GPUs, on their way to the CPU's memory and back
variables           tensors and arrays of the same memory; values of variables
tensors             what the exchange of gradients does with tensors
backward_pass       gradients, while they are made
compiled_update     the update by their mean
randomness          the states of PyTorch's generators
fused               kernels for that of some optimizers
whole_batch         numbers that depend on the batches of all workers
keras_steps         what Keras calls for each step
data                the batches of a `fit()`
between_graph       one process for each worker
"""
