"""JAX, where compiled code has no variables: a step is several compiled functions of arrays, with EasyScale in between.

backend             the `Backend`
host_calls          calls from steps into Python with arrays
on_gpus             arrays on GPUs: transfers to host memory and back
variables           NumPy and JAX arrays that share memory; values of variables
tensors             array operations for the exchange of gradients
compiled_update     the update by the mean gradients, compiled
questions           requests of a step to the batches of all workers, answered before it runs
live_step           a model's own step, which changes variables in place
keras_steps         the functions that Keras calls for each step
whole_batch         numbers that depend on the batches of all workers
between_graph       one process per worker
"""
