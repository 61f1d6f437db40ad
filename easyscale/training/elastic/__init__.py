"""Elastic training: what a `fit()` does when workers fail and when they are replaced."""
