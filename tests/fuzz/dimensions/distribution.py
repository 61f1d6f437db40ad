"""How a script is distributed: the arguments of `Distribute` and of `easyscale launch`."""

from fuzz.dimension import Dimension

EXCHANGES = ["ring", "tree", "shared_memory", "hierarchical", "parameter_server", "mpi"]

NOT_WAITING = {
    "bounded": 'easyscale.exchange.ParameterServer("bounded", staleness=2)',
    "async": 'easyscale.exchange.ParameterServer("async")',
}


# In what form gradients travel. Those of half types round; the others leave out so much that a step is another one.
ROUNDS = {"fp16": "mixed_float16", "bf16": "mixed_bfloat16"}  # as much as such a policy does
FORMS = {
    **{name: f'"{name}"' for name in ("fp16", "bf16", "int8", "one_bit")},
    "int8, errors kept": 'easyscale.compression.ErrorFeedback("int8")',
    "top_k": "easyscale.compression.TopK(0.3)",
    "random_k": "easyscale.compression.RandomK(0.5)",
    "power_sgd": "easyscale.compression.PowerSGD(2)",
}


# Updates by which workers step alone between rounds.
ALONE = {
    "local_sgd": "easyscale.update.LocalSGD(every=2)",
    "post-local": "easyscale.update.LocalSGD(every=2, start_step=3)",
    "diloco": "easyscale.update.DiLoCo(every=2)",
    "diloco in turns": "easyscale.update.DiLoCo(every=4, fragments=2)",
    "diloco beside": "easyscale.update.DiLoCo(every=4, fragments=2, overlap=1)",
    "gossip": "easyscale.update.Gossip()",
}


def _quoted(*names: str) -> dict[str, str]:
    return {name: f'"{name}"' for name in names}


def waits(case):
    """Whether a step waits for all workers, so that it is the step of one process."""
    return case["exchange"] not in NOT_WAITING or case["workers"] == "1"


def is_packed(case):
    """Whether processes send each other gradients in a form: those of float32, where they do not read common memory."""
    reads = case["exchange"] == "shared_memory"
    reads |= case["exchange"] == "auto" and case["workers"] == "2" and case["servers"] == "0"
    sends = case["workers"] != "1" and case["replication"] == "between_graph"
    sends &= not reads or case["nodes"] != "1"
    return sends and case["compression"] != "none" and case["precision"] != "float64"


def is_another(case):
    """Whether the training is another one than that of one process, on purpose.

    That is so where a form leaves out much of gradients, and where workers step alone.
    """
    return (is_packed(case) and case["compression"] not in ROUNDS) or (
        case["rounds"] != "none" and case["workers"] != "1"
    )


def _exchange_fits(case):
    if case["exchange"] in NOT_WAITING:
        return case["replication"] == "between_graph"
    if case["nodes"] != "1" and case["exchange"] == "shared_memory":
        return False
    if case["replication"] == "in_graph":
        return case["exchange"] in ("ring", "tree", "parameter_server")
    if case["servers"] != "0":
        return case["exchange"] == "parameter_server"
    return True


# What a script says to EasyScale: one that does not know of it, under `--auto`, has none of these.
SAID = (
    "replication",
    "servers",
    "nodes",
    "exchange",
    "update",
    "rounds",
    "compression",
    "bucket_bytes",
    "check_every",
    "compiled",
    "wrapped",
    "model_parallel",
    "resume",
)

DIMENSIONS = [
    Dimension("auto", {"no": "", "yes": "yes"}, 0.1),
    Dimension("workers", {"2": "2", "1": "1", "3": "3", "4": "4"}, 0.5),
    Dimension(
        "replication",
        {"between_graph": "", "in_graph": "in_graph"},
        0.15,
        fits=lambda case: case["workers"] in ("2", "3"),
    ),
    Dimension(
        "servers",
        {"0": "0", "1": "1"},
        0.06,
        fits=lambda case: case["replication"] == "between_graph" and case["workers"] == "2",
    ),
    # Ranks of one node; on several each range travels twice. They are emulated: all have one machine's memory.
    Dimension(
        "nodes",
        {"1": "", "of 1": "1", "of 2": "2", "of 3": "3"},
        0.1,
        fits=lambda case: (
            case["replication"] == "between_graph"
            and case["servers"] == "0"
            and int(case.source("nodes")) < int(case["workers"])
        ),
    ),
    Dimension("exchange", {"auto": "", **_quoted(*EXCHANGES), **NOT_WAITING}, 0.7, "distribute", _exchange_fits),
    Dimension("update", {"default": "", **_quoted("replicated", "sharded")}, 0.4, "distribute"),
    Dimension(
        "rounds",
        {"none": "", **ALONE},
        0.06,
        "distribute",
        lambda case: case["update"] == "default" and case["replication"] == "between_graph" and case["servers"] == "0",
        argument="update",
    ),
    Dimension("compression", {"none": "", **FORMS}, 0.1, "distribute", fits=lambda case: case["rounds"] != "gossip"),
    Dimension("bucket_bytes", {"default": "", "16": "16", "300": "300", "4096": "4096"}, 0.25, "distribute"),
    Dimension("check_every", {"100": "", "1": "1", "2": "2"}, 0.15, "distribute"),
    # Whether XLA compiles the update of a small model, too.
    Dimension("compiled", {"by size": "", "always": "0"}, 0.3),
    # Who wraps the optimizer: `Distribute`, or the script by hand.
    Dimension("wrapped", {"by Distribute": "", "by hand": "by hand"}, 0.15),
]
