"""JAX, where what is compiled knows no variables: a step is some functions of arrays, and between them EasyScale.

backend             the `Backend`
host_calls          where steps call Python with arrays
on_gpus             arrays on GPUs, on their way to the CPU's memory and back
variables           arrays of NumPy and of JAX of the same memory; values of variables
tensors             what the exchange of gradients does with arrays
compiled_update     the update by their mean, compiled
questions           what a step asks of the batches of all workers, asked before it is made
live_step           a model's own step, which changes variables in place
keras_steps         what Keras calls for each step
whole_batch         numbers that depend on the batches of all workers
between_graph       one process for each worker
"""
