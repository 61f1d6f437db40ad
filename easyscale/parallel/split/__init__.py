"""Layers whose weights are divided over workers, or over the ranks of a group that is one: activations travel.

split           what users say
kinds/          which layers can be split, and what a slice computes
cheapest        which layers send less so
trip            how rows come to the owners of slices, and back; NumPy only
passage         one call of a layer in a step
split_layer     a layer that is split over workers
group_layer     a layer that is split over the ranks of a group, which share a batch
pair            two of these behind each other, between which nothing travels
sliced_variable a weight that stands for a slice of itself meanwhile
"""
