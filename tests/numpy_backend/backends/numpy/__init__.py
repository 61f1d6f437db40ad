"""NumPy as a backend of EasyScale: eager, without a graph, a compiler or a GPU. See `backend`."""
