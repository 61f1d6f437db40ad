"""What each mpirun says, and what we read from it. The texts are real ones."""

import pytest

from easyscale.cli.launch.ending import Ending
from easyscale.cli.launch.runtimes.intel_mpi import IntelMpi
from easyscale.cli.launch.runtimes.mpich import Mpich
from easyscale.cli.launch.runtimes.open_mpi import OpenMpi
from easyscale.errors import LaunchError

OPEN_MPI = OpenMpi("mpirun", "mpirun (Open MPI) 5.0.11")
OPEN_MPI_4 = OpenMpi("mpirun", "mpirun (Open MPI) 4.1.6")
MPICH = Mpich("mpirun", "HYDRA build details:\n    Version:                                 5.0.2\n")
INTEL = IntelMpi("mpirun", "Intel(R) MPI Library for Linux* OS")

KILLED = {
    OPEN_MPI: """--------------------------------------------------------------------------
prterun noticed that process rank 1 with PID 5186 on node vm exited on
signal 9 (Killed).
--------------------------------------------------------------------------""",
    MPICH: """=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 5205 RUNNING AT vm
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
[mpiexec@vm] Exit codes: [vm] 9,9
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)""",
    INTEL: """=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   RANK 1 PID 5236 RUNNING AT vm
=   KILLED BY SIGNAL: 9 (Killed)
[mpiexec@vm] Exit codes: [vm:0] 0,9""",
}

FAILED = {
    OPEN_MPI: """prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-6656@1,1]
   Exit code:    7
--------------------------------------------------------------------------""",
    OPEN_MPI_4: """mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[34075,1],1]
  Exit code:    7""",
    MPICH: "[mpiexec@vm] Exit codes: [vm] 0,1792\n",
    INTEL: "[mpiexec@vm] Exit codes: [vm:0] 0,1792\n",
}


def test_a_killed_rank_is_read_from_what_mpirun_says():
    assert OPEN_MPI.ending(KILLED[OPEN_MPI]) == Ending(rank=1, host="vm", signal=9)
    assert MPICH.ending(KILLED[MPICH]) == Ending(signal=9)
    assert INTEL.ending(KILLED[INTEL]) == Ending(rank=1, host="vm", signal=9)


@pytest.mark.parametrize("runtime", FAILED, ids=lambda runtime: type(runtime).__name__)
def test_a_rank_that_failed_is_read_from_what_mpirun_says(runtime):
    ending = runtime.ending(FAILED[runtime])
    assert (ending.rank, ending.code, ending.signal) == (1, 7, None)


def test_an_abort_of_open_mpi_names_its_rank():
    said = "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD\n  Proc: [[51048,1],3]\n  Errorcode: 7\n"
    assert OPEN_MPI.ending(said) == Ending(rank=3, code=7)


@pytest.mark.parametrize("runtime", [OPEN_MPI, MPICH, INTEL])
def test_other_words_tell_no_ending(runtime):
    assert runtime.ending("ssh: Could not resolve hostname nosuch: Name or service not known") is None


def test_several_failures_do_not_tell_who_was_first():
    assert MPICH.ending("[mpiexec@vm] Exit codes: [vm] 256,256\n") == Ending()


def test_intel_mpi_also_lists_the_ranks_that_it_has_killed():
    listed = [f"=   RANK {rank} PID 5{rank} RUNNING AT vm\n=   KILLED BY SIGNAL: 9 (Killed)\n" for rank in range(3)]
    assert INTEL.ending("".join(listed)) == Ending(signal=9)


def test_forwarded_lines_are_told_from_mpiruns_own():
    assert OPEN_MPI.tagged("[1,12]<stderr>:  indented", "stdout") == (12, "stderr", " indented")
    assert OPEN_MPI_4.tagged("[1,2]<stdout>: indented", "stdout") == (2, "stdout", " indented")
    assert MPICH.tagged("[3] text", "stderr") == (3, "stderr", "text")
    assert OPEN_MPI.tagged("prterun noticed", "stderr") is None
    assert MPICH.tagged("[mpiexec@vm] Exit codes", "stdout") is None


@pytest.mark.parametrize("runtime", [MPICH, INTEL, OPEN_MPI_4])
def test_an_mpi_that_cannot_go_on_without_a_rank_says_so_in_one_line(runtime):
    with pytest.raises(
        LaunchError, match=r"^--elastic needs Open MPI 5 or later\. Received: .+ Run: pip install [^\n]+$"
    ):
        runtime.elastic_flags()


def test_an_mpirun_is_called_by_its_name_and_version():
    assert (MPICH.name, INTEL.name) == ("MPICH 5.0.2", "Intel(R) MPI Library for Linux* OS")
    assert OPEN_MPI_4.name == "mpirun (Open MPI) 4.1.6"
