"""State that a `fit()` shares between workers, one kind per file: metrics, losses, statistics, randomness, data."""
