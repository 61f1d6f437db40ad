"""Measure when one process that feeds all devices is the bottleneck.

    python benchmarks/feeding.py

The same net, trained by two processes and by two devices of one process, in turns, on batches that Python prepares by
going over the images more and more often.
"""

import statistics

from compare import ROUNDS, easyscale_group

PASSES = [0, 2, 8, 32]


def main() -> None:
    with (
        easyscale_group("feed.py", 2) as between,
        easyscale_group("feed.py", 2, in_graph=True) as in_graph,
    ):
        times = {(mode, passes): [] for mode in (between, in_graph) for passes in PASSES}
        for turn in range(1 + ROUNDS):
            for passes in PASSES:
                for mode in (between, in_graph):
                    found = mode.turn(passes=passes)
                    if turn:
                        times[mode, passes] += [max(each) for each in zip(*found, strict=True)][1:]
        prepared = {passes: in_graph.turn(passes=passes)[0][0] for passes in PASSES}
    lines = [
        "| preparing a batch takes | a step between-graph | in-graph | in-graph / between-graph |",
        "|---|---|---|---|",
    ]
    for passes in PASSES:
        first, other = (1e3 * statistics.median(times[mode, passes]) for mode in (between, in_graph))
        lines.append(f"| {1e3 * prepared[passes]:.0f} ms | {first:.0f} ms | {other:.0f} ms | {other / first:.2f} |")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
