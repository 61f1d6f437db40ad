"""A worker that comes early to a meeting takes part in what the others do until they come, too."""

from types import SimpleNamespace

import pytest

from easyscale.step.agreement import Agreed, Purpose
from easyscale.timeline import Timeline
from easyscale.training.meetings import Meetings


class Optimizer:
    """Stands in for a `DistributedOptimizer` whose workers agree on one thing after the other."""

    def __init__(self, *agreed, joins=True):
        self._agreed, self._joins, self.joined, self.late = list(agreed), joins, [], None
        steps = SimpleNamespace(meet=self._meet)
        self.workers = SimpleNamespace(steps=steps, communicator=SimpleNamespace(rank=1, timeline=Timeline()))

    def _meet(self, purpose, detail):
        purpose, detail = self._agreed.pop(0)
        return Agreed(purpose, detail, 0.0, False)

    def join(self, agreed):
        self.joined.append(agreed.purpose)
        return self._joins


class Progress:
    noted = 0

    def note_exchanges(self):
        self.noted += 1


def test_what_is_registered_is_done_with_its_detail_and_steps_are_joined():
    optimizer = Optimizer((Purpose.GRADIENTS, 3), (Purpose.CHECK, 7), (Purpose.CHECK, 8), (Purpose.END, 0))
    progress, seen = Progress(), []
    meetings = Meetings([optimizer], progress)
    meetings.register(Purpose.CHECK, seen.append)
    meetings.reach(Purpose.END)
    assert seen == [7, 8] and optimizer.joined == [Purpose.GRADIENTS] and progress.noted == 3


def test_weights_that_are_on_their_way_have_come_before_anything_is_said():
    optimizer = Optimizer((Purpose.END, 0))
    optimizer.late = SimpleNamespace(settle=lambda: optimizer.joined.append(len(optimizer._agreed)))
    Meetings([optimizer], Progress()).reach(Purpose.END)
    assert optimizer.joined == [1]


def test_a_worker_that_knows_no_gradients_cannot_join_a_step():
    meetings = Meetings([Optimizer((Purpose.GRADIENTS, 3), joins=False)], Progress())
    with pytest.raises(ValueError, match="must have had data .* none in this fit\\(\\) on worker 1"):
        meetings.reach(Purpose.END)
