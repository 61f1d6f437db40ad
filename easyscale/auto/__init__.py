"""`easyscale launch --auto`: a Keras script that does not know of EasyScale is trained by all workers.

script      what each rank runs: seeds alike, watches for Keras, runs the script
model       what `fit`, `evaluate`, `predict` and `save` of a Keras model do instead
data        what a worker gets of the data that the script passes: its part, if they can be divided
files       who writes the files of the script, and who waits for them
report      the lines by which the chief says what was done, and what could not be
"""
