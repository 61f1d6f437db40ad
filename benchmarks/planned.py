"""How far `easyscale plan` is from what is measured: sizes of vectors, and numbers of ranks, that it has not seen.

    for n in 2 3 4; do
        easyscale bench exchange -n $n --sizes 4KB,16KB,64KB,256KB,1MB,4MB,16MB,64MB --json known$n.json
        easyscale bench exchange -n $n --sizes 8KB,32KB,128KB,512KB,2MB,8MB,32MB --json new$n.json
    done
    python benchmarks/planned.py --known known?.json --json benchmarks/results/plan.json
    python benchmarks/planned.py --known known?.json --new new?.json

Without `--new` each size is worked out from the other sizes; for other numbers of ranks from all sizes of these. Prints
the largest error of each exchange, and writes all of them.
"""

import argparse
import json

from easyscale import exchange
from easyscale.cli.plan.measured import Node, left_out, read
from easyscale.quantities import bytes_text


def rows_of(files: list[str]) -> list[dict]:
    found = [read(file) for file in files]
    machines = [
        {"ranks": measurement["machine"]["ranks"], "cores": measurement["machine"]["cores"]} for measurement in found
    ]
    return [{**row, **where} for measurement, where in zip(found, machines, strict=True) for row in measurement["rows"]]


def compared(known: list[dict], new: list[dict]) -> list[dict]:
    """Return rows with what follows from `known`: from its other sizes if there is no `new`; and from other ranks."""
    exchanges = {name: exchange.get(name) for name in exchange.available()}
    node = Node(exchanges, known)
    within = {(row["exchange"], row["ranks"], row["bytes"]): row["predicted"] for row in left_out(known)}
    done = []
    for row in new or known:
        others = Node(exchanges, [other for other in known if other["ranks"] != row["ranks"]])
        others.most = node.most  # also for more ranks than were measured
        asked = row["exchange"], row["ranks"], row["bytes"]
        kept = {name: row[name] for name in ("exchange", "ranks", "bytes", "median")}
        predicted = node.seconds(*asked) if new else within.get(asked)
        done.append({**kept, "predicted": predicted, "from_other_ranks": others.seconds(*asked)})
    return done


def largest(rows: list[dict], name: str, ranks: int, column: str) -> str:
    own = [row for row in rows if (row["exchange"], row["ranks"]) == (name, ranks) and row[column] is not None]
    errors = {row["bytes"]: row[column] / row["median"] - 1 for row in own}
    worst = max(errors, key=lambda nbytes: abs(errors[nbytes]), default=None)
    return "" if worst is None else f"{errors[worst]:+.0%} at {bytes_text(worst)}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--known", nargs="+", required=True)
    parser.add_argument("--new", nargs="+", default=[])
    parser.add_argument("--json")
    args = parser.parse_args()
    rows = compared(rows_of(args.known), rows_of(args.new))
    ranks = sorted({row["ranks"] for row in rows})
    columns = [("predicted", size) for size in ranks] + [("from_other_ranks", size) for size in ranks]
    columns = [column for column in columns if any(row["ranks"] == column[1] and row[column[0]] for row in rows)]
    heads = [f"P = {size}" + " from other P" * (column != "predicted") for column, size in columns]
    print("|".join(["", " exchange ", *(f" {head} " for head in heads), ""]))
    print("|" + "---|" * (len(heads) + 1))
    for name in exchange.available():
        cells = [largest(rows, name, size, column) for column, size in columns]
        print("|".join(["", f" `{name}` ", *(f" {cell} " for cell in cells), ""]))
    if args.json:
        with open(args.json, "w") as file:
            lines = ",\n".join(json.dumps(row) for row in rows)
            file.write(f'{{"machine": {json.dumps(read(args.known[0])["machine"])},\n"checked": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
