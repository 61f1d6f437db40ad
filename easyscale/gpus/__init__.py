"""GPU memory for exchanges, independent of the framework that computes on the GPU.

memory     the protocols that exchanges use; vectors on a GPU behave like NumPy's
cuda       the implementation for NVIDIA's GPUs, with CuPy
ranks      the ranks that compute on each GPU
"""
