"""Checkpoints as files in a folder, written atomically, and the memory and thread that write them. NumPy only."""
