"""`easyscale launch --auto`: distributed training of a Keras script that does not use EasyScale.

script      each rank's entry point: sets the same seeds on all ranks, patches Keras on import, runs the script
model       replacements for `fit`, `evaluate`, `predict` and `save` of Keras models
data        the worker's part of the data that the script passes, where the data can be divided
predicting  the worker's part of the data for `predict`, and the gathering of all predictions
files       the script's files: the chief writes them, the other ranks wait for them
report      messages from the chief: what was distributed, and what could not be
"""
