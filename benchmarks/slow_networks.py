"""What forms of gradients save on slow networks, and what they cost: bytes, time, accuracy, beside PyTorch.

    sudo .venv/bin/python benchmarks/slow_networks.py [--only 100mbit,torch] [--seeds 0,1,2] [--rounds 3] [--json FILE]

Each row takes less than ten minutes on two free cores, and is measured by itself with `--only`:

    bytes       what two ranks send of ResNet50's gradients in a ring, counted, beside what the form says
    pack        100 MB packed and unpacked on one core, beside one copy
    100mbit     ResNet50, two ranks, 100 Mbit/s: samples per second in each form, beside none
    1gbit       the same at 1 Gbit/s and 20 ms
    digits      accuracy on digits that are held out, in each form
    source      loss of a small transformer on modules of Python's standard library that are held out, byte by byte
    diloco      loss of that transformer, and what is sent in a step, with 4 workers that meet every 100 steps, beside
                an exchange in each, behind 1000 steps that were made so; and mixing in pairs, from the first step on
    stream      two workers with 100 Mbit/s and 20 ms that meet every 100 steps: samples per second beside those that
                never do, and the most that one sends in any second: all weights, a quarter each 25 steps, a fifth each
                20, or that while five are made
    torch       PyTorch's DDP with its hooks, over Gloo, beside ours: the same net, weights and batches, at 100 Mbit/s

Ways take turns in one launch, and figures are medians; torch and ours take turns in launches. `100mbit` and `torch` run
on two emulated hosts with shaped links, which need root on Linux, iproute2 and util-linux; else the first runs as with
`easyscale launch --bandwidth`, as `1gbit` always does: `--network throttle` has it so everywhere, and `torch` left out.
`torch` also needs `make .venv/backends/torch/.done`. `--quick` only shows that all runs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import compression_cost as packing  # noqa: E402
import two_hosts  # noqa: E402

OURS, THEIRS = HERE / "peers" / "slow_keras.py", HERE / "peers" / "slow_torch.py"
TORCH = HERE.parent / ".venv" / "backends" / "torch" / "bin" / "python"
FORMS = ["none", "bf16", "int8", "one_bit", "top_k", "power_sgd"]
FASTEST = ["none", "int8", "one_bit", "power_sgd"]  # what is compared where a step takes seconds
HOOKS = ["none", "fp16", "power_sgd"]
RATE = "100mbit"


def ours(order: dict, network: list[str] | None = None, rate: str | None = None, ranks: int = 2) -> dict:
    """Return what ranks answer: two on two hosts with links of a rate, or as over a network."""
    if rate is not None:
        said = two_hosts.run(str(OURS), [json.dumps(order)], rate, "on")
    else:
        launch = [str(Path(sys.executable).with_name("easyscale")), "launch", "-n", str(ranks), *(network or [])]
        done = subprocess.run([*launch, str(OURS), json.dumps(order)], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{ranks} ranks must train. Received: exit code {done.returncode}\n{done.stderr[-3000:]}")
        said = done.stdout.splitlines()
    return _found(said)


def torch_on_hosts(order: dict, rate: str) -> dict:
    """Return what PyTorch's two ranks answer on two hosts with links of a rate."""
    environment = {"WORLD_SIZE": "2", "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": "eth0"}
    command = [str(TORCH), str(THEIRS), json.dumps(order)]
    with two_hosts.shaped(rate) as hosts:
        ranks = [
            hosts.start(rank, command, env=environment | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
            for rank in range(2)
        ]
        said = [rank.communicate()[0] for rank in ranks]
        assert all(rank.returncode == 0 for rank in ranks), said
    return _found(said[0].splitlines())


def _found(said: list[str]) -> dict:
    return json.loads(next(line for line in said if line.startswith("found ")).removeprefix("found "))


# Rows


def bytes_row(options: argparse.Namespace) -> dict:
    """What a rank sends of ResNet50's gradients, and its part of what it sends without a form."""
    import numpy as np

    from easyscale import communicator, exchange
    from easyscale.compression import PowerSGD, Span, StepOfForm, get

    shapes = _shapes(options.quick)
    edges = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)]).tolist()
    spans = [Span(number, *edges[number : number + 2], shape) for number, shape in enumerate(shapes)]
    rank, found = 4, {}
    kernels = [(int(np.prod(shape[:-1])), shape[-1]) for shape in shapes if len(shape) > 1]
    thin = [(rows, columns) for rows, columns in kernels if rank * (rows + columns) < rows * columns]
    numbers = edges[-1] - sum(rows * columns - rank * (rows + columns) for rows, columns in thin)
    said = {"fp16": 0.5, "int8": 0.252, "power_sgd": numbers / edges[-1]}
    for name in ["none", *said]:

        def on_rank(comm, name=name):
            way, vector = exchange.get("ring", comm), np.zeros(edges[-1], "float32")
            form = PowerSGD(rank) if name == "power_sgd" else get(None if name == "none" else name)
            before = comm.sent.bytes
            way.allreduce(vector) if form is None else form.sum(way, vector, StepOfForm(0, spans, {}))
            return comm.sent.bytes - before

        sent = max(communicator.run_ranks(2, on_rank, timeout=600))
        found[name] = {
            "bytes": sent,
            "part": sent / found.get("none", {"bytes": sent})["bytes"],
            "said": said.get(name),
        }
    return found


def _shapes(quick: bool) -> list[tuple[int, ...]]:
    if quick:
        return [(3, 3, 64, 128), (128,), (512, 1000), (1000,)]
    import keras

    return [tuple(variable.shape) for variable in keras.applications.ResNet50(weights=None).trainable_variables]


def pack_row(options: argparse.Namespace) -> dict:
    """Seconds of packing and unpacking, and how many copies that is."""
    found = packing.measure(1 if options.quick else 100, 1 if options.quick else 5)
    return {name: {"seconds": median, "copies": median / found["copy"]} for name, median in found.items()}


def slow_row(options: argparse.Namespace) -> dict:
    """A step at 100 Mbit/s."""
    on_hosts = options.network == "hosts"
    return _speed(options, None if on_hosts else ["--bandwidth", "100Mbit"], RATE if on_hosts else None, 1 << 24)


def far_row(options: argparse.Namespace) -> dict:
    """A step at 1 Gbit/s and 20 ms."""
    return _speed(options, ["--bandwidth", "1Gbit", "--latency", "20ms"], None, 1 << 26)  # a vector more costs 40 ms


def _speed(options: argparse.Namespace, network: list[str] | None, rate: str | None, bucket_bytes: int) -> dict:
    order = {"what": "speed", "model": options.model, "batch": 8, "ways": FASTEST, "rounds": options.rounds, "steps": 3}
    order["bucket_bytes"] = bucket_bytes
    if options.quick:
        order |= {"model": "cifar10", "rounds": 1, "steps": 1}
    found = ours(order, network, rate)
    none = found["none"]["seconds"]
    return {way: row | {"samples": 16 / row["seconds"], "faster": none / row["seconds"]} for way, row in found.items()}


def digits_row(options: argparse.Namespace) -> dict:
    return _accuracy(options, "digits", "accuracy")


def source_row(options: argparse.Namespace) -> dict:
    return _accuracy(options, "source", "loss")


def _accuracy(options: argparse.Namespace, task: str, name: str) -> dict:
    """The median over seeds of accuracy or loss, and how far it is from that of no form."""
    order = {"what": "learn", "task": task, "ways": options.ways, "seeds": options.seeds}
    if options.quick:
        order |= {"ways": ["none", "int8"], "seeds": [0], "steps": 4}
    found = {way: [seed[name] for seed in seeds] for way, seeds in ours(order).items()}
    none = statistics.median(found["none"])
    medians = {way: statistics.median(values) for way, values in found.items()}
    return {way: {name: medians[way], "beside none": medians[way] / none - 1, "seeds": found[way]} for way in found}


def diloco_row(options: argparse.Namespace) -> dict:
    """The median over seeds, beside an exchange in each step."""
    order = {
        "what": "learn",
        "task": "source",
        "ways": ["none", "diloco", "diloco:4", "diloco:5+5", "gossip"],
        "seeds": options.seeds,
    }
    order |= {"steps": 8, "before": 4, "seeds": [0]} if options.quick else {"steps": 3000, "before": 1000}
    found, rows = ours(order, ranks=4), {}
    for way, seeds in found.items():
        row = {key: statistics.median(seed[key] for seed in seeds) for key in ("loss", "bytes", "messages")}
        beside = {f"{key}, beside none": row[key] / rows["none"][key] if rows else 1.0 for key in row}
        rows[way] = row | beside | {"seeds": [seed["loss"] for seed in seeds]}
    return rows


def stream_row(options: argparse.Namespace) -> dict:
    """Samples per second, and what is sent in a second at most, at 100 Mbit/s and 20 ms."""
    order = {
        "what": "stream",
        "ways": ["alone", "diloco", "diloco:4", "diloco:5", "diloco:5+5"],
        "rounds": options.rounds,
    }
    order |= {"rounds": 1, "cycles": 1, "batch": 2} if options.quick else {"cycles": 2, "batch": 32}
    found = ours(order, ["--bandwidth", "100Mbit", "--latency", "20ms"])
    alone, whole = found["alone"]["samples"], found["diloco"]["bytes"]
    return {
        way: row | {"beside alone": row["samples"] / alone, "bytes, beside all": row["bytes"] / whole}
        for way, row in found.items()
    }


def torch_row(options: argparse.Namespace) -> dict:
    """Ours and PyTorch's in turns."""
    if options.network != "hosts" or not TORCH.exists():
        return {}
    order = {"steps": 6, "width": 64, "seed": 0} if options.quick else {"steps": 24, "width": 2048, "seed": 0}
    found: dict = {}
    for _ in range(1 if options.quick else options.rounds):
        for way in HOOKS:
            for name, measure in (
                (f"ours, {way}", lambda way=way: ours({"what": "beside torch", "way": way, **order}, rate=RATE)),
                (f"torch, {way}", lambda way=way: torch_on_hosts({"way": way, **order}, RATE)),
            ):
                found.setdefault(name, []).append(row := measure())
                print(f"{name}: {row['seconds']:.4g} s a step, loss {row['loss']:.4g}", flush=True)
    return {
        name: {key: statistics.median(row[key] for row in rows) for key in ("seconds", "loss")}
        for name, rows in found.items()
    }


ROWS = {
    "bytes": bytes_row,
    "pack": pack_row,
    "100mbit": slow_row,
    "1gbit": far_row,
    "digits": digits_row,
    "source": source_row,
    "diloco": diloco_row,
    "stream": stream_row,
    "torch": torch_row,
}


def show(name: str, found: dict) -> list[str]:
    """Return the lines of a table."""
    columns = list(next(iter(found.values()), {}))
    lines = [f"| {name} | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    return lines + [f"| {way} | {' | '.join(_text(key, row[key]) for key in columns)} |" for way, row in found.items()]


def _text(key: str, value: float | list | None) -> str:
    if isinstance(value, list):
        return ", ".join(_text(key, each) for each in value)
    return "" if value is None else f"{value:,.0f}" if key == "bytes" else f"{value:.4g}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(ROWS), help="rows, with commas between them")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--ways", default=",".join(FORMS), help="forms of `digits` and `source`, `none` among them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="resnet50", help="of `100mbit` and `1gbit`; `mlp` has as many weights")
    parser.add_argument("--network", choices=["hosts", "throttle"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    chosen = options.only.split(",")
    if wrong := [name for name in chosen if name not in ROWS]:
        parser.error(f"--only must be of {list(ROWS)}. Received: {wrong[0]}")
    options.seeds, options.ways = [int(seed) for seed in options.seeds.split(",")], options.ways.split(",")
    options.network = options.network or ("hosts" if two_hosts.Hosts.are_possible() else "throttle")
    load = os.getloadavg()[0] / os.cpu_count()
    print(f"network: {options.network}; {load:.1f} processes for a core before the first row", flush=True)
    results = {}
    for name in chosen:
        results[name] = ROWS[name](options)
        print("", *show(name, results[name]), sep="\n", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
