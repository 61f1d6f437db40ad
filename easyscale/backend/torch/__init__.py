"""PyTorch, where everything is eager: a step is Python code, and host calls are plain calls.

backend             the `Backend`
host_calls          calls from steps into Python with arrays
on_gpus             tensors on GPUs: transfers to host memory and back
variables           tensors and arrays that share memory; values of variables
tensors             tensor operations for the exchange of gradients
backward_pass       per-gradient hooks
compiled_update     the update by the mean gradients
fused               fused kernels for the update by some optimizers
randomness          the states of PyTorch's generators
whole_batch         numbers that depend on the batches of all workers
keras_steps         the functions that Keras calls for each step
data                the batches of a `fit()`
between_graph       one process per worker
"""
