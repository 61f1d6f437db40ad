"""Who is told of the models that are built in the scope of a pipeline."""

import keras
import pytest

import easyscale
from easyscale.parallel.pipeline import built


@pytest.fixture
def nobody_told(monkeypatch):
    monkeypatch.setattr(built, "_acts", [])
    monkeypatch.setattr(built, "_untold", [])


def build():
    inside = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)], name="inside")
    return keras.Sequential([keras.Input((2,)), inside], name="outside")


def test_who_wants_to_know_is_told_of_models_of_before_and_of_later_ones(nobody_told):
    told, communicator = [], easyscale.communicator.get("local")

    def act(model, pipeline, known):
        told.append((model.name, pipeline))
        assert known is communicator

    with built.built_for("first", communicator):
        first = build()
    built.on_built(act)
    assert {("inside", "first"), ("outside", "first")} <= set(told)
    with built.built_for("second", communicator):
        second = build()
    assert [one for one in told if one[0] == "outside"] == [("outside", "first"), ("outside", "second")]
    build()  # in no scope
    assert len([one for one in told if one[0] == "outside"]) == 2
    assert first.name == second.name


def test_a_model_that_is_gone_is_of_no_interest(nobody_told, monkeypatch):
    told = []
    monkeypatch.setattr(built, "_untold", [(lambda: None, "pipeline", easyscale.communicator.get("local"))])
    built.on_built(lambda *args: told.append(args))
    assert told == [] and built._untold == []
