"""What `DistributedOptimizer` knows of the optimizers inside it."""
