"""Kills workers of one job at random, again and again, while others take their place: does it come to the same end?

    python benchmarks/soak.py [--kills 200] [--minutes 15] [--pause 4] [--write]

A small conv net on the digits of scikit-learn, over three workers. One run is left in peace. In the other a worker, be
it the chief, gets a SIGKILL at random times if there are two or more, until there have been so many or the time is
over; then it trains on for as many epochs as the other run has had. `--write` puts the result into `docs/elastic.md`.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pages import replace

ROOT = Path(__file__).parents[1]
WORKERS, EPOCHS = 3, 30


def train(folder: Path) -> None:
    """What each worker runs."""
    import easyscale

    easyscale.rank()  # MPI begins now: hundreds of spares take both cores as long as they wait for that
    import keras
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    class Soaked(keras.callbacks.Callback):
        epochs_left = EPOCHS

        def on_epoch_begin(self, epoch, logs=None):
            (folder / f"{os.getpid()}.pid").touch()

        def on_epoch_end(self, epoch, logs=None):
            self.epochs_left -= (folder / "peace").exists()
            self.model.stop_training = easyscale.is_chief() and self.epochs_left <= 0

    keras.utils.set_random_seed(1)
    digits = load_digits()
    x_train, x_test, y_train, y_test = train_test_split(
        digits.images[..., None] / 16.0, digits.target, test_size=360, stratify=digits.target, random_state=0
    )
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    callbacks = [easyscale.callbacks.Distribute(), Soaked()]
    options = {"batch_size": easyscale.local_batch(48), "epochs": 1_000_000, "verbose": 2}
    model.fit(*easyscale.shard(x_train, y_train), callbacks=callbacks, **options)
    if easyscale.is_chief():
        _, accuracy = model.evaluate(x_test, y_test, verbose=0)
        (folder / "result.json").write_text(json.dumps({"accuracy": accuracy}))


def run(kills: int, minutes: float, pause: float) -> dict:
    """Run the job, kill workers, and return what became of it."""
    mark = f"EASYSCALE_SOAK={random.SystemRandom().getrandbits(64):x}"
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryFile("w+") as said:
        folder, done = Path(name), 0
        # A chief that is killed takes with it those that it has called and that have not joined.
        options = (
            ["--elastic", "--respawn", "--spares", str(kills + kills * 2 // 3 + WORKERS)] if kills else ["--elastic"]
        )
        options += ["--stall-timeout", "600"]  # so many processes take minutes to begin
        command = [sys.executable, "-m", "easyscale", "launch", "-n", str(WORKERS), *options, __file__, "--train", name]
        environment = {**os.environ, **dict([mark.split("=")]), "TF_CPP_MIN_LOG_LEVEL": "2"}
        start = time.monotonic()
        process = subprocess.Popen(command, stdout=said, stderr=said, stdin=subprocess.DEVNULL, env=environment)
        while process.poll() is None and done < kills and time.monotonic() - start < 60 * minutes:
            time.sleep(random.expovariate(1 / pause))
            training = sorted(folder.glob("*.pid"))  # those that have joined
            if len(training) > 1:
                victim = random.choice(training)
                victim.unlink()
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(victim.stem), signal.SIGKILL)
                    done += 1
        (folder / "peace").touch()
        code = process.wait()
        time.sleep(1)
        said.seek(0)
        text = said.read()
        result = {"kills": done, "code": code, "replaced": text.count("been replaced")}
        result["processes"] = len(_alive(mark))
        result["files"] = len(list(Path("/dev/shm").glob(f"easyscale-{process.pid}-*")))
        if code != 0:
            print(text[-4000:], file=sys.stderr)
            return result
        return result | json.loads((folder / "result.json").read_text())


def _alive(mark: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(process.name)
        except OSError:
            pass
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--pause", type=float, default=4, help="seconds between two kills, on average")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--train", type=Path)
    arguments = parser.parse_args()
    if arguments.train:
        return train(arguments.train)
    peace = run(0, 0, 1)
    soaked = run(arguments.kills, arguments.minutes, arguments.pause)
    rows = ["| | undisturbed | soaked |", "|---|---|---|"]
    for name, show in (
        ("workers killed", lambda result: f"{result['kills']}"),
        ("epochs at which replacements joined", lambda result: f"{result['replaced']}"),
        ("exit code", lambda result: f"{result['code']}"),
        ("test accuracy", lambda result: f"{result.get('accuracy', 0):.2%}"),
        ("processes, files left", lambda result: f"{result['processes']}, {result['files']}"),
    ):
        rows.append(f"| {name} | {show(peace)} | {show(soaked)} |")
    print("\n".join(rows))
    if arguments.write:
        replace(ROOT / "docs" / "elastic.md", "soak", rows)


if __name__ == "__main__":
    main()
