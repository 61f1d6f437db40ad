"""Accuracy against batch size: SGD as it is, SGD with a scaled rate and a warm-up, and LARS; several seeds.

    python examples/large_batch.py --plot large_batch.png
    python examples/large_batch.py --methods "SGD, tuned" --batches 32,1024
    easyscale launch -n 2 examples/large_batch.py --data mnist

"SGD" keeps its rate, "SGD, scaled" has it grow with the batch and warmed up, and LARS has it grow with the root of the
batch; "SGD, tuned" has another for each batch. All rates fall by a polynomial to zero at the end. Each method takes
those of `--rates` (LARS also of `--trusts`) that are best on a quarter of the training images, which is held out; then
it trains on all of them. The images to test have no part in that.
The lines with a comment are the ones that EasyScale adds.
"""

import argparse
import itertools
import json
import os
import statistics

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import easyscale

METHODS = ["SGD", "SGD, scaled", "SGD, tuned", "LARS"]


def above_zero(kind):
    def numbers(text):
        found = [kind(part) for part in text.split(",")]
        if not min(found) > 0:
            raise ValueError("argparse says which argument it is")
        return found

    return numbers


parser = argparse.ArgumentParser()
parser.add_argument("--data", choices=["digits", "mnist", "cifar10"], default="digits")
parser.add_argument("--batches", type=above_zero(int), help="by default 32,...,1024 for digits and 256,...,8192 else")
parser.add_argument("--methods", default="SGD;SGD, scaled;LARS", help=f"some of {METHODS}")
parser.add_argument("--epochs", type=int, default=30)
parser.add_argument("--warmup", type=float, default=5, help="epochs")
parser.add_argument("--seeds", type=int, default=3)
parser.add_argument(
    "--rates",
    type=above_zero(float),
    default="0.005,0.01,0.02,0.05,0.1,0.2",
    help="at the smallest batch, to choose from",
)
parser.add_argument(
    "--trusts", type=above_zero(float), default="0.1", help="trust coefficients of LARS, to choose from"
)
parser.add_argument("--json", help="write all results here")
parser.add_argument("--plot", help="draw accuracy over batch size here")
args = parser.parse_args()
for file in filter(None, (args.json, args.plot)):
    if not os.access(os.path.dirname(os.path.abspath(file)), os.W_OK):
        parser.error(f"--json and --plot must be files in a folder that may be written. Received: {file}")
if min(args.epochs, args.seeds) < 1:
    parser.error("--epochs and --seeds must be 1 or more")
if not set(args.methods.split(";")) <= set(METHODS):
    parser.error(f"--methods must be some of {METHODS}, with semicolons. Received: {args.methods}")


def load():
    """Return images from 0 to 1 and labels, to train and to test."""
    if args.data == "digits":
        digits = load_digits()
        images = digits.images[..., None].astype("float32") / 16
        x, x_test, y, y_test = train_test_split(
            images, digits.target, test_size=360, stratify=digits.target, random_state=0
        )
        return x, y, x_test, y_test
    (x, y), (x_test, y_test) = getattr(keras.datasets, args.data).load_data()
    x, x_test = (part.reshape(len(part), *part.shape[1:3], -1) / np.float32(255) for part in (x, x_test))
    return x, y.reshape(-1), x_test, y_test.reshape(-1)


def hold_out(data, seed):
    """Return images to train, and a quarter of them to choose by; another quarter for each seed."""
    x, y, *_ = data
    x, x_held, y, y_held = train_test_split(x, y, test_size=0.25, stratify=y, random_state=seed)
    return x, y, x_held, y_held


def build(shape):
    layers = [keras.Input(shape)]
    for filters in (8, 16, 32):
        layers.append(keras.layers.Conv2D(filters, 3, padding="same", use_bias=False))
        layers += [keras.layers.BatchNormalization(momentum=0.9, synchronized=True), keras.layers.ReLU()]
        layers += [keras.layers.MaxPooling2D()] if filters > 8 else []
    return keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(10)])


def optimizer(method, numbers, growth, steps_per_epoch):
    """Return an optimizer for a batch that is `growth` times the smallest."""
    steps = args.epochs * steps_per_epoch
    warmup = min(round(args.warmup * steps_per_epoch), steps - 1)
    decay = easyscale.optimizers.schedules.PolynomialDecay  # with a warm-up, or without
    rate, *trust = numbers
    if method == "LARS":
        grown = easyscale.scaled_lr(rate, 1, growth, rule="sqrt")
        return easyscale.optimizers.LARS(decay(grown, steps, warmup), weight_decay=1e-4, trust_coefficient=trust[0])
    if method == "SGD, scaled":
        grown = easyscale.scaled_lr(rate, 1, growth)  # linearly
        return easyscale.optimizers.SGD(decay(grown, steps, warmup, start=rate))  # momentum correction
    return keras.optimizers.SGD(decay(rate, steps), momentum=0.9)


def train(method, numbers, batch, growth, seed, data):
    """Return the accuracy on the second half of `data`."""
    x, y, x_test, y_test = data
    keras.utils.set_random_seed(seed)
    model = build(x.shape[1:])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer(method, numbers, growth, -(-len(x) // batch)), loss, metrics=["accuracy"])
    model.fit(
        *easyscale.shard(x, y),  # this process's part of the data
        batch_size=easyscale.local_batch(batch),  # this process's part of a batch
        epochs=args.epochs,
        verbose=0,
        callbacks=[easyscale.callbacks.Distribute()],  # one model on all processes
    )
    return float(model.evaluate(x_test, y_test, batch_size=1024, verbose=0)[1])


def say(*words):
    if easyscale.is_chief():  # one of all processes prints
        print(*words, flush=True)


def candidates(method):
    """Return tuples of a rate and, for LARS, a trust coefficient."""
    return list(itertools.product(args.rates, args.trusts) if method == "LARS" else itertools.product(args.rates))


def choose(method, at, smallest, data, held_out):
    """Return the numbers with the best accuracy on held-out images: the mean over seeds and the batches `at`."""
    among = candidates(method)
    for numbers, batch in itertools.product(among, at):
        if len(among) > 1 and (method, numbers, batch) not in held_out:
            found = [
                train(method, numbers, batch, batch / smallest, seed, hold_out(data, seed))
                for seed in range(args.seeds)
            ]
            held_out[method, numbers, batch] = found
            say(f"{method} {numbers}, batch {batch}: {statistics.mean(found):.2%} of the held-out images")
    return max(among, key=lambda numbers: sum(sum(held_out.get((method, numbers, batch), [0])) for batch in at))


def plot(results, file):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for method, of in results.items():
        batches = list(of)
        means = [100 * statistics.mean(of[batch]) for batch in batches]
        (line,) = axes.plot(batches, means, marker="o", label=method)
        low, high = ([100 * edge(of[batch]) for batch in batches] for edge in (min, max))
        axes.fill_between(batches, low, high, alpha=0.15, color=line.get_color())
    axes.set(xscale="log", xlabel="batch size", ylabel="test accuracy, %")
    axes.set_xticks(batches, batches)
    axes.minorticks_off()
    axes.grid(True, alpha=0.3)
    axes.legend()
    figure.suptitle(f"{args.data}, {args.epochs} epochs: mean, and lowest to highest of {args.seeds} seeds")
    figure.savefig(file, dpi=110)


def main():
    try:
        data = load()
    except Exception as error:  # which is what Keras raises if it cannot download
        say(f"{args.data} could not be loaded ({error}), so these are the digits of scikit-learn")
        args.data = "digits"
        data = load()
    batches = args.batches or [(32 if args.data == "digits" else 256) << doubled for doubled in range(6)]
    smallest, largest = batches[0], batches[-1]
    held_out, chosen, results = {}, {}, {}
    for name in args.methods.split(";"):
        method = name.removesuffix(", tuned")
        results[name], chosen[name] = {}, {}
        for batch in batches:
            at = [batch] if name != method else [smallest, largest]  # one number for all batches, or one for each
            numbers = chosen[name][batch] = choose(method, at, smallest, data, held_out)
            found = [train(method, numbers, batch, batch / smallest, seed, data) for seed in range(args.seeds)]
            results[name][batch] = found
            spread = f"{min(found):.2%} to {max(found):.2%}"
            say(f"{name}, batch {batch}: {statistics.mean(found):.2%} ({spread}) with {numbers}")
    for name, of in results.items():
        lost = 100 * (statistics.mean(of[smallest]) - statistics.mean(of[largest]))
        say(f"{name} loses {lost:.2f} percentage points from batch {smallest} to {largest}")
    if args.json and easyscale.is_chief():
        rows = [
            {"method": method, "numbers": numbers, "batch": batch, "accuracies": found}
            for (method, numbers, batch), found in held_out.items()
        ]
        written = {"data": args.data, "epochs": args.epochs, "accuracies": results, "chosen": chosen, "held_out": rows}
        with open(args.json, "w") as file:
            json.dump(written, file, indent=1)
    if args.plot and easyscale.is_chief():
        plot(results, args.plot)


if __name__ == "__main__":
    main()
