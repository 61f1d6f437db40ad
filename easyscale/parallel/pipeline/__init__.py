"""A pipeline: each worker has some layers of the model, and micro-batches go through all of them.

schedules/      in which order a stage works, without a tensor
cut             which layers are whose
crossings       what crosses the cuts
stage           what one stage does in a step
pipeline        what users say
"""
