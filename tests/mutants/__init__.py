"""Faults planted in EasyScale, one at a time, to see that tests find them: `make mutants`.

planting     where a fault can be planted in a file, and the file with it
touching     which tests run which lines
"""
