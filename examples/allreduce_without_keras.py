"""The exchanges without Keras: k-means by NumPy alone, with the points divided among all processes.

    python examples/allreduce_without_keras.py
    easyscale launch -n 4 examples/allreduce_without_keras.py --exchange tree

Each process sums up its own points by cluster; `allreduce` makes of it the sums over all points. So every process has
the same centres after each step, and however many there are, the centres are those of one.
"""

import argparse

import numpy as np

import easyscale

parser = argparse.ArgumentParser()
parser.add_argument("--exchange", default=None, help="ring, tree, mpi, ...; by default what `easyscale launch` says")
parser.add_argument("--points", type=int, default=300_000)
parser.add_argument("--steps", type=int, default=10)
args = parser.parse_args()

generator = np.random.default_rng(0)
true_centres = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0], [6.0, 6.0]])
points = true_centres[np.arange(args.points) % 4] + generator.normal(size=(args.points, 2))

exchange = easyscale.exchange.get(args.exchange)  # connected to all processes
points = easyscale.shard(points)  # this process's part

centres = true_centres + [[1.5, 1.0], [-1.0, 1.5], [1.0, -1.5], [-1.5, -1.0]]
for _ in range(args.steps):
    nearest = np.square(points[:, None] - centres).sum(axis=2).argmin(axis=1)
    sums = exchange.allocate(4 * 3, "float64")  # a vector where this exchange is fastest
    table = sums.reshape(4, 3)  # for each centre: the number of its points, and their sum
    table[:, 0] = np.bincount(nearest, minlength=4)
    for axis in range(2):
        table[:, 1 + axis] = np.bincount(nearest, weights=points[:, axis], minlength=4)
    exchange.allreduce(sums)  # in place: now the sums over all processes
    centres = table[:, 1:] / table[:, :1]

if easyscale.is_chief():  # one process prints
    print(f"{easyscale.size()} process(es), {args.points:,} points")
    for count, centre in zip(table[:, 0], centres, strict=True):
        print(f"centre {centre[0]:8.5f} {centre[1]:8.5f} of {count:.0f} points")
