"""TensorFlow, in graph mode. Only this backend has in-graph replication, in a subpackage.

backend             the `Backend`
host_calls          calls from graphs into Python
variables           values of variables, without a copy
tensors, rows       tensor operations for the exchange of gradients, dense and row-sparse
compiled_update     the update of weights, as a graph of its own
whole_batch         numbers that depend on the batches of all workers
between_graph       one process and one graph per worker
in_graph/           one process whose graph holds a replica on each of several devices; and several such processes
data                queries on batches and datasets
internals           wrappers for TensorFlow's private APIs
"""
