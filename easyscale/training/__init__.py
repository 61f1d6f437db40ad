"""Distributed training: the parts of a `fit()` that involve all workers."""
