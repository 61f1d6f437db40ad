"""Learning rates for larger batches."""

import pytest

import easyscale


def test_the_rate_grows_with_the_batch(run_ranks):
    assert easyscale.scaled_lr(0.1, 256, 8192) == pytest.approx(3.2)
    assert easyscale.scaled_lr(0.1, 256, 1024, "sqrt") == pytest.approx(0.2)
    assert run_ranks(8, lambda comm: easyscale.scaled_lr(0.1, 256)) == [pytest.approx(0.8)] * 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 256), "`base_lr` must be a number above 0"),
        ((float("inf"), 256), "`base_lr` must be a number above 0. Received: base_lr=inf"),
        (("a", 256), "`base_lr` must be a number above 0. Received: base_lr='a'"),
        ((0.1, "a"), "`base_batch` must be 1 or more samples. Received: base_batch='a'"),
        ((0.1, 256, float("inf")), "`batch` must be 1 or more samples. Received: batch=inf"),
        ((0.1, 0), "`base_batch` must be 1 or more samples. Received: base_batch=0"),
        ((0.1, 32, 0), "`batch` must be 1 or more samples. Received: batch=0"),
        ((0.1, 32, 64, "squareroot"), "`rule` must be one of"),
    ],
)
def test_a_rate_that_cannot_be_scaled_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        easyscale.scaled_lr(*arguments)
