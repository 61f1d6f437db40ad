"""Memory of GPUs, as far as exchanges need it, whatever the framework that computes there.

memory     what an exchange asks of such memory, by a protocol; vectors there behave as NumPy's do
cuda       that of NVIDIA's GPUs, by CuPy
ranks      which ranks compute on which GPU
"""
