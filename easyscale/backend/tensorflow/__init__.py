"""TensorFlow, in graph mode. In-graph replication, which no other backend has, is a folder inside.

backend             the `Backend`
host_calls          where graphs call Python
variables           values of variables, without a copy
tensors, rows       what the exchange of gradients does with tensors, and with some rows of a matrix
compiled_update     the update by that mean, as a graph of its own
whole_batch         numbers that depend on the batches of all workers
between_graph       one process and one graph for each worker
in_graph/           one process whose graph holds a replica for each of several devices; and several such
data                what is asked of batches and datasets
internals           what TensorFlow has no public name for
"""
