"""Where in flat vectors arrays are, and which part of them each rank owns. NumPy only.

specs     shape and dtype of an array
bucket    many arrays in one vector
shards    the parts of arrays that each rank owns
sliced    an array of which each rank has some columns, or rows
"""
