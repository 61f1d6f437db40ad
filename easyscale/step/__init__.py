"""The part of a step that all backends share: agreement, exchange and averaging. NumPy only.

context          the context of a step, and the types used in steps
plan             the arrays that a step exchanges, the vectors that carry them, and a hash of the arrays
reducer          averages the arrays of one plan, during or after the backward pass
gradients        the three operations of a step, called from its graph: reduce, update, gather
reduce_config    the exchange, bucket size and compression of gradients
steps            coordinates collective calls and failure handling across workers
agreement        a row of 48 bytes from each rank before each collective call
served           weights owned by servers, which may change them at any time
slices           variables that are slices of larger ones
equality         makes variables equal on all workers, and checks that they are
statistics       moments over the data of all workers
shared           state shared by all optimizers on one communicator
python_calls     calls of Python from a graph, and their exceptions
background       the thread that communicates while the graph computes
one_replica      the replica of the model in a process
whole_batch      the batches of all workers as one, for layers, losses and metrics
late_gather      gathers weights while the next step begins
ready_buckets    sends gradients during an eager backward pass
compressed_sums  compressed sums of gradients
residuals        compression errors, which are added to the next gradients
rows_of_ranks    collects one array from each rank
random_state     the random number generators of a process
"""
