"""Layers whose weights are divided over workers, or over the ranks of a group that is one worker: activations travel.

split           the user's options
kinds/          the layers that can be split, and what a slice computes
cheapest        the choice of layers that send less when split
trip            communication of rows to the owners of slices, and back; NumPy only
passage         one call of a layer in a step
split_layer     a layer that is split over workers
group_layer     a layer that is split over the ranks of a group, which share a batch
pair            two consecutive layers of a group with no communication in between
sliced_variable a weight that is temporarily replaced by a slice of itself
"""
