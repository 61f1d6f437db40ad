"""What `compression` stands for: a name, an instance, a class, what a file says, or the environment."""

import re

import keras
import pytest
from forms import own_forms

import easyscale
from easyscale import compression
from easyscale.compression import FP16, ErrorFeedback, Packing, get, serialize
from easyscale.exchange.compressed import Compressed
from easyscale.replication.connecting import connect


class Sliced(Packing):
    """A form with an argument."""

    name = "sliced"
    error = 1.0

    def __init__(self, slices=2):
        self.slices = slices

    def nbytes(self, length):
        return length

    def pack(self, vector):
        return vector.astype("int8").view("uint8")

    def unpack(self, message, vector):
        vector[:] = message.view("int8")


def test_a_form_is_asked_for_by_its_name_an_instance_or_a_class():
    form = Sliced(3)
    assert get(None) is None
    assert get("fp16") == get(FP16) == FP16()
    assert get(form) is form
    assert get("sliced") == Sliced(2) != form


@pytest.mark.parametrize(
    "form", [Sliced(3), ErrorFeedback(Sliced(3)), *(form() for form in own_forms().values())], ids=repr
)
def test_what_a_file_says_of_a_form_makes_it_again(form):
    assert get(serialize(form)) == form
    assert eval(repr(form), {"Sliced": Sliced, **vars(compression)}) == form
    assert len({form, get(serialize(form))}) == 1


def test_an_optimizer_has_its_form_in_its_configuration():
    optimizer = easyscale.DistributedOptimizer("sgd", "ring", compression=Sliced(3))
    config = keras.saving.serialize_keras_object(optimizer)
    assert config["config"]["compression"] == {"name": "sliced", "slices": 3}
    assert keras.saving.deserialize_keras_object(config).compression == Sliced(3)


@pytest.mark.parametrize("identifier", ["int88", 7, {"slices": 3}])
def test_what_is_none_is_told_those_that_are(identifier):
    with pytest.raises(ValueError, match=re.escape(f"`compression` must be one of {compression.names()}")):
        easyscale.callbacks.Distribute(compression=identifier)


def test_the_environment_says_it_where_the_script_does_not(monkeypatch):
    assert compression.asked(None) is None
    monkeypatch.setenv("EASYSCALE_COMPRESSION", "bf16")
    assert compression.asked(None) == get("bf16")
    assert compression.asked("fp16") == get("fp16")
    monkeypatch.setenv("EASYSCALE_COMPRESSION", "bf61")
    with pytest.raises(ValueError, match=r"Received: EASYSCALE_COMPRESSION='bf61'. Did you mean 'bf16'\?"):
        compression.asked(None)


def test_auto_is_no_form_yet(monkeypatch):
    optimizer = easyscale.DistributedOptimizer("sgd", "ring", compression="auto")
    config = keras.saving.serialize_keras_object(optimizer)
    assert config["config"]["compression"] == {"name": "auto"}
    assert keras.saving.deserialize_keras_object(config).compression == "auto"
    monkeypatch.setenv("EASYSCALE_COMPRESSION", "auto")
    assert compression.asked(None) == "auto"
    assert optimizer.workers.gradients.sums is None  # there is one worker


@pytest.mark.parametrize("form", [None, ErrorFeedback("fp16"), "auto", "fp61"])
def test_error_feedback_is_around_a_form(form):
    with pytest.raises(ValueError, match="`form` must be a form without|Did you mean 'fp16'"):
        ErrorFeedback(form)


def test_error_feedback_wants_gradients_of_one_scale():
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    optimizer = easyscale.DistributedOptimizer(scaled, "ring", compression=ErrorFeedback("fp16"))
    with pytest.raises(ValueError, match="error feedback needs gradients of one scale. Received: compression='fp16 wi"):
        _ = optimizer.workers
    _ = easyscale.DistributedOptimizer(scaled, "ring", compression="fp16").workers


def test_error_feedback_wants_ranks_that_all_train(monkeypatch):
    servers = easyscale.exchange.get("parameter_server", "local")
    monkeypatch.setattr(servers.communicator, "servers", 1)
    with pytest.raises(ValueError, match="error feedback needs ranks that all train. Received: .* and 1 servers. "):
        connect(servers, None, None, None, "local", False, ErrorFeedback("fp16"))


@pytest.mark.parametrize(
    ("exchange", "line"),
    [
        (
            "mpi",
            "a form needs an exchange whose messages can have it. Received: compression='fp16', exchange='mpi'; its "
            "sums are the MPI library's, which takes numbers as they are. Use 'ring' or 'hierarchical', or leave "
            "`compression` out",
        ),
        (
            "parameter_server:async",
            "gradients for servers that do not wait for all workers travel as they are. Received: compression='fp16', "
            "exchange='parameter_server:async'. Use 'parameter_server', 'ring' or 'hierarchical', or leave "
            "`compression` out",
        ),
        (
            Compressed(easyscale.exchange.get("ring", "local"), FP16()),
            "gradients travel in one form. Received: compression='fp16', exchange='ring fp16'. Leave one of them out",
        ),
    ],
    ids=["mpi", "async", "twice"],
)
def test_what_gradients_cannot_travel_along_is_refused(exchange, line):
    with pytest.raises(ValueError, match=f"^{re.escape(line)}$"):
        connect(exchange, None, None, None, "local", False, FP16())
