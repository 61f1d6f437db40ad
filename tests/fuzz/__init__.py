"""Draws training scripts at random, trains each with and without EasyScale, and shrinks those that differ.

    python -m fuzz --seed 1 --minutes 10        in tests/; `make fuzz SEED=1 MINUTES=10`

dimensions/    what a script may do, in one file for each part of it; a new feature is one entry there
case.py        one draw: a value of each dimension
script.py      a case as a Keras script: what is run here, and what is printed
pool.py        processes that run many scripts: one without EasyScale, jobs of `easyscale launch` with it
trial.py       one case, run by both, and what came of it
compare.py     what is promised to be equal, and whether it is
shrink.py      the smallest case that still fails
"""
