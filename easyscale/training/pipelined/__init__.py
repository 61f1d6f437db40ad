"""A `fit()` of a model whose stages are on several ranks.

distribution    what the model and its callbacks do differently
refusals        what a pipeline cannot train
steps           the steps, and who has data for them
meeting         what all ranks tell each other before each
loss            loss and metrics, on the last stage
optimizer       a stage's optimizer, and its state in that of the whole model
whole_model     weights and state of all stages on every rank
"""
