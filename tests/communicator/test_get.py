import numpy as np
import pytest

from easyscale import communicator
from easyscale.communicator import Communicator
from easyscale.errors import LaunchError


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("identifier", [None, "local"])
def test_without_a_launcher_it_is_one_rank_that_needs_no_mpi(identifier):
    comm = communicator.get(identifier)
    assert (comm.rank, comm.size, comm.local_rank, comm.local_size) == (0, 1, 0, 1)
    buffer = np.arange(3.0)
    comm.all_reduce(buffer)
    comm.broadcast(buffer)
    comm.barrier()
    assert buffer.tolist() == [0, 1, 2]
    assert comm.sent.messages == 0


def test_the_same_call_returns_the_same_object():
    assert communicator.get() is communicator.get("local")


def test_a_communicator_stands_for_itself(run_ranks):
    for comm, again in run_ranks(2, lambda comm: (comm, communicator.get(comm))):
        assert isinstance(comm, Communicator)
        assert again is comm


@pytest.mark.parametrize("identifier", [None, "local"])
def test_inside_run_ranks_it_is_the_ranks_own(run_ranks, identifier):
    for rank, (comm, got) in enumerate(run_ranks(3, lambda comm: (comm, communicator.get(identifier)))):
        assert got is comm
        assert got.rank == rank


def test_inside_run_ranks_the_launcher_does_not_matter(run_ranks, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    assert run_ranks(2, lambda comm: communicator.get() is comm) == [True, True]


def test_one_rank_of_a_launcher_needs_no_mpi(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    assert communicator.get() is communicator.get("local")


@pytest.mark.parametrize(
    "identifier, hint",
    [("mpii", ". Did you mean 'mpi'?"), ("lokal", ". Did you mean 'local'?"), ("nccl", ""), (3, "")],
)
def test_an_unknown_identifier_is_named_with_the_nearest_match(identifier, hint):
    with pytest.raises(ValueError) as raised:
        communicator.get(identifier)
    assert str(raised.value) == (
        "`communicator` must be one of ['local', 'mpi'] or a `Communicator`. "
        f"Received: communicator={identifier!r}{hint}"
    )


def test_processes_of_torchrun_are_told_that_they_cannot_meet(monkeypatch, run_ranks):
    monkeypatch.setattr("sys.argv", ["/somewhere/train.py"])
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert communicator.get().size == 1
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(LaunchError, match="Received: torchrun, with 4 processes. Run: easyscale launch -n 4 train.py"):
        communicator.get()
    assert communicator.get("local").size == 1
    assert run_ranks(2, lambda comm: communicator.get().size) == [2, 2]
