"""A `fit()` in which layers are split over the workers.

split_model      the split layers during a `fit()`, and access to whole ones meanwhile
group_batch      the batch that the ranks of a group share
vocabulary_loss  the loss of logits that are never gathered
refusals         checks for options that cannot be combined with split layers
"""
