"""The layout of arrays in flat vectors, and their division among ranks. NumPy only.

specs     shape and dtype of an array
bucket    many arrays in one vector
shards    the parts of arrays that each rank owns
sliced    an array divided among ranks by columns or rows
"""
