"""What cases of other backends than TensorFlow do without: it is TensorFlow's own, or refused there."""

__all__ = ["MISSING"]

# Keras on them computes in float32 here and there, or throughout, also where it is asked for float64.
MISSING = dict.fromkeys(
    ("torch", "jax"),
    {"compiled": "by size", "replication": "between_graph", "model_parallel": "none", "precision": "float32"},
)
