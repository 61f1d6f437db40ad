"""Trace file of the steps of all ranks, for https://ui.perfetto.dev and chrome://tracing."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from easyscale.profiling.gathered import Recorded
from easyscale.timeline import Part

__all__ = ["events", "write"]


def write(path: str, ranks: Sequence[Recorded]) -> None:
    """Write all ranks' recordings in the trace event format, with a process for each rank.

    Args:
        path: String.
        ranks: The recordings of all ranks.

    Raises:
        OSError: If the file cannot be written.

    Reference: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
    """
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"displayTimeUnit": "ms", "traceEvents": list(events(ranks))}, file)
        file.write("\n")


def events(ranks: Sequence[Recorded]) -> Iterator[dict[str, Any]]:
    """Yield the events of each rank: names, then spans, in microseconds since the first span of any rank."""
    begin = min((span.begin for rank in ranks for span in rank.spans), default=0)
    last = _last_of_steps(ranks)
    for rank in ranks:
        pid = rank.rank
        threads = list(dict.fromkeys(["", *(span.thread for span in rank.spans)]))
        yield _name("process_name", pid, 0, f"rank {pid} on {rank.host}")
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
        for tid, thread in enumerate(threads):
            yield _name("thread_name", pid, tid, thread or "training")
        for span in rank.spans:
            told: dict[str, Any] = {"step": span.step}
            if span.name == Part.WAIT and last.get(span.step, pid) != pid:
                told["for"] = f"rank {last[span.step]}"
            times = {"ts": (span.begin - begin) / 1e3, "dur": (span.end - span.begin) / 1e3}
            yield {"ph": "X", "name": span.name, "pid": pid, "tid": threads.index(span.thread), **times, "args": told}


def _last_of_steps(ranks: Sequence[Recorded]) -> dict[int, int]:
    """Return, for each step, the rank that the others waited for: the one that waited least."""
    waited: dict[int, dict[int, int]] = defaultdict(dict)
    for rank in ranks:
        for span in rank.spans:
            if not span.thread:
                own = (span.end - span.begin) * (span.name == Part.WAIT)
                waited[span.step][rank.rank] = waited[span.step].get(rank.rank, 0) + own
    return {step: min(own, key=own.__getitem__) for step, own in waited.items() if len(own) == len(ranks)}


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}
