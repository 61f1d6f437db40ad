"""A `fit()` of a model whose stages are on several ranks.

distribution    what the model and its callbacks do differently
first_call      a model is cut for a call before its first `fit()`
refusals        what a pipeline cannot train
start           what ranks agree on at the begin
steps           the steps, and who has data for them
meeting         what all ranks tell each other before each
loss            loss and metrics, on the last stage
divisors        what losses are divided by that are no means over samples
optimizer       a stage's optimizer, and its state in that of the whole model
averages        moving averages of weights, and when they become the weights
all_stages      what an optimizer does by the gradients of all weights
staged_state    what has state, for checkpoints
own_state       the same of a model that was built in a scope: each rank has that of its stage
stage_copies    how its parts come to the file, and back
checkpoints     what writes them
whole_model     weights and state of all stages on every rank
"""
