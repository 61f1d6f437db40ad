"""Layers whose weights are divided over workers: activations travel to the slices, and results back.

split           what users say
kinds/          which layers can be split, and what a slice computes
cheapest        which layers send less so
trip            how rows come to the owners of slices, and back; NumPy only
passage         one call of a layer in a step
split_layer     a layer that is split
sliced_variable a weight that stands for a slice of itself meanwhile
"""
