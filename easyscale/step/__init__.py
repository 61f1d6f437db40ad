"""The part of a step that all backends share: what workers agree on, what travels, and how it is averaged. NumPy only.

context          the context of a step, and the types of what it passes on
plan             the arrays that a step exchanges, the vectors that they travel in, and a hash of both
reducer          averages the arrays of one plan, in one piece or while the backward pass goes on
gradients        the three movements of a step, called from its graph: reduce, update, gather
steps            coordinates collective calls and failure handling across workers
agreement        a row of 48 bytes from each rank before each collective call
served           weights that servers own and change at any time
slices           variables that are slices of larger ones
equality         variables that are equal on all workers
statistics       moments of all workers' data together
shared           state that all optimizers on one communicator have in common
python_calls     calls of Python from a graph, and their exceptions
background       the thread that exchanges while the graph computes
one_replica      the model of a process that has one copy of it
whole_batch      the batches of all workers together, for layers, losses and metrics
late_gather      weights that come back while the next step begins
ready_buckets    gradients that leave while an eager backward pass makes them
compressed_sums  sums of gradients in a compressed form, and its residuals
random_state     the generators of a process
"""
