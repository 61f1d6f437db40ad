"""What workers do in turn."""

import pytest

from easyscale import backend, exchange
from easyscale.progress import Activity
from easyscale.step.agreement import Purpose
from easyscale.step.gradients import Gradients
from easyscale.step.reduce_config import ReduceConfig
from easyscale.step.shared import Shared
from easyscale.step.steps import Steps


def _steps(comm):
    shared, compiled = Shared(comm, backend.get()), backend.get().compiled_update(comm, has_copies=False)
    gradients = Gradients(ReduceConfig(exchange.get("ring", comm), None, fixed=True), shared, False, compiled)
    return Steps(comm, shared, gradients), shared


@pytest.mark.parametrize("phase, activity", [(2, Activity.STEPS), (3, Activity.EVALUATION)])
def test_progress_says_what_workers_do(run_ranks, phase, activity):
    def on_rank(comm):
        steps, _ = _steps(comm)
        steps.begin(phase, together=True)
        return comm.progress.phase, comm.progress.activity, comm.progress.exchange

    assert run_ranks(2, on_rank) == [(phase, activity, "ring")] * 2


def test_all_know_that_one_was_asked_to_end_when_they_have_met(run_ranks):
    def on_rank(comm):
        steps, _ = _steps(comm)
        if comm.rank == 1:
            steps.ask_to_end()
        before = steps.asked_to_end
        steps.meet(Purpose.DECISION)
        return before, steps.asked_to_end

    assert run_ranks(3, on_rank) == [(False, True)] * 3


def test_what_an_exchange_raised_is_raised_as_it_was(run_ranks):
    def on_rank(comm):
        steps, shared = _steps(comm)
        original, failed = ValueError("the exchange's own"), []
        with pytest.raises(ValueError, match="the exchange's own"), steps.explained(lambda: failed.append(True)):
            shared.call.failure = original
            raise RuntimeError("TensorFlow's wrapping")
        with pytest.raises(StopIteration), steps.explained(lambda: failed.append(True)):
            raise StopIteration
        return failed

    assert run_ranks(1, on_rank) == [[True]]
