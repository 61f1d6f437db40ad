"""What a script does with its model and data: one `fit()` or several, and what stands between them."""

from fuzz.dimension import Dimension
from fuzz.dimensions.data import samples
from fuzz.dimensions.optimizers import is_constant
from fuzz.dimensions.parallel import is_in_scope, pipelines

CALLBACKS = {
    "none": "",
    "EarlyStopping": "keras.callbacks.EarlyStopping('loss', min_delta=1e-3, patience=1, restore_best_weights=True)",
    "ReduceLROnPlateau": "keras.callbacks.ReduceLROnPlateau('loss', factor=0.5, patience=1, min_delta=0.02)",
    "LearningRateScheduler": "keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.7)",
    "ModelCheckpoint": "keras.callbacks.ModelCheckpoint(f'{folder}/{{epoch}}.weights.h5', save_weights_only=True)",
    "ModelCheckpoint, whole": "keras.callbacks.ModelCheckpoint(f'{folder}/best.keras', 'loss', save_best_only=True)",
    # It looks at weights between steps, where those of the last may still be on their way.
    "ModelCheckpoint, after steps": "keras.callbacks.ModelCheckpoint(f'{folder}/{{epoch}}-{{batch}}.weights.h5', "
    "save_weights_only=True, save_freq=2)",
    "BackupAndRestore": "keras.callbacks.BackupAndRestore(f'{folder}/backup')",
    "CSVLogger": "keras.callbacks.CSVLogger(f'{folder}/log.csv')",
    "TerminateOnNaN": "keras.callbacks.TerminateOnNaN()",
    "SwapEMAWeights": "keras.callbacks.SwapEMAWeights()",
    "SwapEMAWeights, on epoch": "keras.callbacks.SwapEMAWeights(swap_on_epoch=True)",
    "sets the rate": "keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs=None: "
    "setattr(model.optimizer, 'learning_rate', 0.01 * (1 + batch)))",
    "sets the rate after": "keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs=None: "
    "setattr(model.optimizer, 'learning_rate', 0.01 / (1 + epoch)))",
    "stops": "keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs=None: "
    "setattr(model, 'stop_training', batch == 1))",
}

_SETS_RATE = ("ReduceLROnPlateau", "LearningRateScheduler", "sets the rate", "sets the rate after")


def _callback_fits(name):
    def fits(case):
        if case[name] in _SETS_RATE and not is_constant(case):
            return False
        # Data whose batches `shard` cannot count: Keras begins one batch more in each epoch, to find none.
        if case[name] == "sets the rate" and case["source"] == "mapped dataset":
            return False
        return not (case[name].startswith("SwapEMAWeights") and case["use_ema"] == "no")

    return fits


# What follows on the first fit(), in lines of the script.
NEXT = {
    "nothing": "",
    "fit": "fit()",
    "initial_epoch": "fit(initial_epoch=1)",
    "compile, fit": "compile_model()\nfit()",
    "freeze, compile, fit": "firsts[0].trainable = False\ncompile_model()\nfit()",
    "unfreeze, compile, fit": "firsts[0].trainable = True\ncompile_model()\nfit()",
    "new rate, fit": "model.optimizer.learning_rate = 0.02\nfit()",
    "new weights, fit": "model.set_weights([0.5 * weight for weight in model.get_weights()])\nfit()",
    "same optimizer, compile, fit": "compile_model(model.optimizer)\nfit()",
    "evaluate": "evaluate()",
    "evaluate, fit": "evaluate()\nfit()",
    "predict": "predict()",
    "predict, fit": "predict()\nfit()",
    "save, load, fit": "model.save_weights(f'{folder}/between.weights.h5')\n"
    "model.load_weights(f'{folder}/between.weights.h5')\nfit()",
    "more data, fit": "data = draw(35)\nfit()",
    "train_on_batch, fit": "train_on_batch()\nfit()",
}

NEEDS_ALL_WEIGHTS = ("train_on_batch, fit", "new weights, fit", "save, load, fit")  # on each rank


def _next_fits(name):
    def fits(case):
        step = case[name]
        if step in NEEDS_ALL_WEIGHTS and is_in_scope(case):
            return False
        if step == "new rate, fit" and not is_constant(case):
            return False
        if step == "train_on_batch, fit":  # documented: there workers weigh the same, and losses are their own
            plain = case["reduction"] in ("", "mean") and case["weights"] == "none" and case["class_weight"] == "none"
            masks = case["body"] in ("masked", "words") or "ignoring" in case["loss"]
            if pipelines(case) > 1:  # each steps by itself
                return False
            return plain and not masks and not case["norm"].startswith("sync") and case["outputs"] == "one"
        return True

    return fits


DIMENSIONS = [
    Dimension("epochs", {"2": "2", "1": "1", "3": "3"}, 0.3),
    Dimension("second", NEXT, 0.5, fits=_next_fits("second")),
    Dimension("third", NEXT, 0.3, fits=lambda case: case["second"] != "nothing" and _next_fits("third")(case)),
    Dimension("callback", CALLBACKS, 0.35, fits=_callback_fits("callback")),
    Dimension("second_callback", CALLBACKS, 0.15, fits=_callback_fits("second_callback")),
    Dimension("steps_per_execution", {"1": "", "2": "2", "3": "3"}, 0.12, "compile"),
    # A worker that has no graph and never had data does not know what the others exchange; that is refused.
    Dimension(
        "run_eagerly", {"no": "", "yes": "True"}, 0.08, "compile", lambda case: samples(case) >= int(case["workers"])
    ),
    Dimension("jit_compile", {"auto": "", "no": "False", "yes": "True"}, 0.1, "compile"),
]
