"""A pipeline: each worker has some layers of the model, and micro-batches pass through all of them.

schedules/      the order of a stage's actions, without tensors
cut             the assignment of layers to stages
crossings       the tensors that cross the cuts
stage           the actions of one stage in a step
pipeline        the user's options
"""
