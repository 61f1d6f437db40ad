"""Who writes checkpoints of a `fit()`, and what is said if that cannot be."""

import numpy as np
import pytest

import easyscale
from easyscale.checkpoint.folder import Checkpoint, Checkpoints
from easyscale.errors import EasyScaleError, EasyScaleWarning
from easyscale.training.checkpoint_schedule import CheckpointSchedule
from easyscale.training.saving import Saving


class State:
    """Stands in for a `WholeState`: a number."""

    def __init__(self, comm, reserve=lambda: None):
        self._comm, self.reserve = comm, reserve

    def collect(self, steps, ended):
        numbers = self._comm.all_gather_object(self._comm.rank)
        return (
            Checkpoint({"steps": steps, "ended": ended}, {"ranks": np.array(numbers)}) if self._comm.is_chief else None
        )

    def release(self):
        pass


class Workers:
    """Stands in for a `Replication`, and its `Steps`."""

    asked_to_end = False

    def __init__(self, comm):
        self.communicator, self.steps = comm, self

    def ask_to_end(self):
        self.asked_to_end = True


def saving(folder, comm, **state):
    schedule = CheckpointSchedule(steps=5, seconds=0.0)
    schedule.begin(0)
    return Saving(Checkpoints(folder), State(comm, **state), schedule, Workers(comm))


def save(one, steps):
    one.save(steps, ended=False, is_last=True)
    return one.finish()


def test_the_chief_writes_what_all_ranks_have(run_ranks, tmp_path):
    def on_rank(comm):
        one = saving(tmp_path, comm)
        one.prepare()
        has_written = save(one, 5)
        one.stop()
        return has_written

    assert run_ranks(3, on_rank) == [True, False, False]
    found, wrong = Checkpoints(tmp_path).read()
    assert found.about["steps"] == 5 and not wrong
    np.testing.assert_array_equal(found.arrays["ranks"], [0, 1, 2])


def test_ranks_meet_when_it_is_time_or_one_was_asked_to_end(tmp_path):
    one = saving(tmp_path, easyscale.communicator.get())
    assert [one.is_due(steps) for steps in (4, 5)] == [False, True]
    one._workers.ask_to_end()
    assert one.is_due(0)


def test_without_memory_nothing_is_gathered_and_that_is_said(run_ranks, tmp_path):
    def fail():
        raise MemoryError("too little")

    one = saving(tmp_path, easyscale.communicator.get(), reserve=fail)
    with pytest.warns(EasyScaleWarning, match="must have room.*too little"):
        assert not save(one, 5)
    one.stop()
    assert Checkpoints(tmp_path).read() == (None, {})


class Parts:
    """Stands in for the parts of a checkpoint that ranks have."""

    def __init__(self):
        self.done = []

    def __getattr__(self, name):
        return lambda: self.done.append(name)


def test_ranks_that_have_parts_let_the_chief_have_them_until_it_has_written(run_ranks, tmp_path):
    def on_rank(comm):
        parts, schedule = Parts(), CheckpointSchedule(steps=5, seconds=0.0)
        one = Saving(Checkpoints(tmp_path), State(comm), schedule, Workers(comm), parts)
        save(one, 5)
        one.stop()
        return sorted(parts.done)

    chief, other = run_ranks(2, on_rank)
    assert chief == ["answer", "end", "finish", "finish"]
    assert other == ["answer", "finish", "finish"]


def test_a_rank_without_memory_for_its_part_has_no_checkpoint_written(run_ranks, tmp_path):
    def on_rank(comm):
        def reserve():
            if comm.rank == 1:
                raise MemoryError

        schedule = CheckpointSchedule(steps=5, seconds=0.0)
        one = Saving(Checkpoints(tmp_path), State(comm, reserve), schedule, Workers(comm), Parts())
        has_written = save(one, 5)
        one.stop()
        return has_written

    with pytest.warns(EasyScaleWarning, match="must have room.*too little memory on rank 1"):
        assert run_ranks(2, on_rank) == [False, False]


def test_a_folder_that_cannot_be_made_ends_a_fit_that_begins_and_is_a_warning_later(tmp_path):
    (tmp_path / "file").write_text("")
    one = saving(tmp_path / "file" / "folder", easyscale.communicator.get())
    with pytest.raises(EasyScaleError, match="`checkpoint` must be a folder that can be written"):
        one.prepare()
    with pytest.warns(EasyScaleWarning, match="must have room"):
        one.take_over(steps=5)
