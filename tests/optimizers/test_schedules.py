"""Schedules, against numbers worked out by hand."""

import keras
import pytest

from easyscale.optimizers.schedules import PolynomialDecay, Warmup


def _rates(schedule, *steps):
    return [float(schedule(keras.ops.convert_to_tensor(step))) for step in steps]


def test_a_warm_up_leads_into_any_schedule():
    after = keras.optimizers.schedules.PiecewiseConstantDecay([6], [0.8, 0.08])
    assert _rates(Warmup(after, 4, start=0.4), 0, 1, 2, 3, 4, 6, 7) == pytest.approx(
        [0.4, 0.5, 0.6, 0.7, 0.8, 0.8, 0.08]
    )
    assert _rates(Warmup(0.8, 4), 0, 1, 4, 9) == pytest.approx([0, 0.2, 0.8, 0.8])
    assert _rates(Warmup(0.8, 0), 0, 1) == pytest.approx([0.8, 0.8])


def test_a_polynomial_counts_from_the_end_of_its_warm_up():
    schedule = PolynomialDecay(1.0, 12, warmup_steps=2, start=0.5, end=0.1)
    expected = [0.5, 0.75, 1.0, 0.1 + 0.9 * 0.25, 0.1, 0.1]
    assert _rates(schedule, 0, 1, 2, 7, 12, 99) == pytest.approx(expected)


def test_without_a_warm_up_it_is_that_of_keras():
    keras_own = keras.optimizers.schedules.PolynomialDecay(3.2, 10, 0.0, power=2)
    assert _rates(PolynomialDecay(3.2, 10), *range(12)) == pytest.approx(_rates(keras_own, *range(12)), abs=1e-6)


@pytest.mark.parametrize(
    "schedule", [PolynomialDecay(1.0, 5, 2), Warmup(0.1, 3), Warmup(PolynomialDecay(1.0, 5), 3, start=0.2, name="w")]
)
def test_they_are_saved_and_loaded(schedule):
    again = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(schedule))
    assert type(again) is type(schedule)
    assert again.get_config() == schedule.get_config()
    assert _rates(again, 0, 1, 2, 4) == _rates(schedule, 0, 1, 2, 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Warmup(0.1, -1), "`steps` must be an integer of 0 or more. Received: steps=-1"),
        (lambda: Warmup(0.1, 1.5), "`steps` must be an integer of 0 or more. Received: steps=1.5"),
        (
            lambda: Warmup("a", 5),
            "`learning_rate` must be a schedule, or a number of 0 or more. Received: learning_rate",
        ),
        (lambda: Warmup(0.1, 5, start=float("inf")), "`start` must be a number of 0 or more"),
        (lambda: PolynomialDecay(float("nan"), 5), "`learning_rate` must be a number of 0 or more"),
        (lambda: Warmup(0.1, 5, start=-1), "`start` must be a number of 0 or more"),
        (lambda: PolynomialDecay(1.0, 0), "`steps` must be an integer of 1 or more"),
        (lambda: PolynomialDecay(1.0, 5, 5), "`warmup_steps` must be an integer from 0 to 4. Received: warmup_steps=5"),
        (lambda: PolynomialDecay(1.0, 5, power=0), "`power` must be a number above 0"),
    ],
)
def test_numbers_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
