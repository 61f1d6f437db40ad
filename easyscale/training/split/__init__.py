"""A `fit()` in which layers are split over the workers.

split_model      which layers are, from the begin of `fit()` to its end, and what is whole meanwhile
group_batch      the batch that the ranks of a group share
vocabulary_loss  the loss of logits that are never whole
refusals         what cannot be together with it
"""
