"""A `fit()` of a model whose stages are on several ranks.

distribution    replacements of the model's methods, and the callbacks' hooks
first_call      cutting a model for a call before its first `fit()`
refusals        checks for models that a pipeline cannot train
start           agreement between ranks at the start
steps           the steps, and the data for them
meeting         agreement between all ranks before each step
loss            loss and metrics, on the last stage
divisors        divisors of losses that are not means over samples
optimizer       a stage's optimizer, and its state within that of the whole model
averages        moving averages of weights, and when they replace the weights
all_stages      what an optimizer computes from the gradients of all weights
staged_state    the training state, for checkpoints
own_state       the same for a model built in a scope: each rank has the state of its stage
stage_copies    transfer of its parts to the file, and back
checkpoints     construction of the checkpointing
whole_model     weights and state of all stages on every rank
"""
