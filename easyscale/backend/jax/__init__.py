"""JAX, where compiled code has no variables: a step is compiled as a function of their values, and calls Python.

backend             the `Backend`
host_calls          calls from steps into Python with arrays
on_gpus             arrays on GPUs: transfers to host memory and back
variables           NumPy and JAX arrays that share memory; values of variables
tensors             array operations for the exchange of gradients
graph               functions that change variables, compiled
compiled_update     the update by the mean gradients, compiled
foreign_calls       calls of Python from compiled code, by XLA's foreign function interface
keras_steps         the functions that Keras calls for each step
whole_batch         numbers that depend on the batches of all workers
between_graph       one process per worker
"""
