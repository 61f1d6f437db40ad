"""Models of which each worker has a part: activations travel, weights stay where they are."""
