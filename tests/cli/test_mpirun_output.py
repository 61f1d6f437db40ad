"""Which of the lines that mpirun writes are those of ranks, and which its own."""

from easyscale.cli.launch.mpirun_output import MpirunOutput
from easyscale.cli.launch.runtimes.mpich import Mpich
from easyscale.cli.launch.runtimes.open_mpi import OpenMpi
from easyscale.cli.launch.worker import MARK

OPEN_MPI = OpenMpi("mpirun", "mpirun (Open MPI) 5.0.11")


class Received:
    """An output, and what it has told of ranks. Ranks in `begun` write to the launcher themselves."""

    def __init__(self, runtime=OPEN_MPI, begun=()):
        self.words, self.lines = [], []
        self.output = MpirunOutput(
            runtime, begun.__contains__, lambda *word: self.words.append(word), lambda *line: self.lines.append(line)
        )

    def feed(self, *pieces, stream="stdout"):
        for piece in pieces:
            self.output.feed(stream, piece)
        return self


def test_lines_of_ranks_are_told_from_those_of_mpirun():
    received = Received().feed(b"[1,2]<stdout>: a line\nno slots\n[1,0]<stderr>: an error\n")
    assert received.lines == [(2, "stdout", b"a line\n"), (0, "stderr", b"an error\n")]
    assert received.output.said == "no slots" and received.output.has_forwarded


def test_a_line_may_come_in_pieces_and_the_last_one_without_an_end():
    received = Received().feed(b"[1,2]<std", b"out>: a l", b"ine\nwith", b"out an end", b"")
    assert received.lines == [(2, "stdout", b"a line\n")]
    assert received.output.said == "without an end"


def test_pieces_of_the_two_streams_do_not_mix():
    received = Received().feed(b"one ").feed(b"error\n", stream="stderr").feed(b"line\n")
    assert received.output.said == "error\none line"


def test_what_a_worker_says_by_way_of_mpirun_is_no_output():
    received = Received().feed(f'[1,3]<stderr>: {MARK}{{"kind": "meets"}}\n'.encode(), stream="stderr")
    assert received.words == [(3, '{"kind": "meets"}')] and received.lines == []
    assert received.output.has_forwarded


def test_what_comes_in_the_name_of_a_rank_that_writes_by_itself_is_of_the_mpi_library():
    received = Received(begun=[1]).feed(b"[1,1]<stderr>: MPI_ABORT was invoked\n[1,0]<stderr>: of rank 0\n")
    assert received.output.said == "MPI_ABORT was invoked"
    assert received.lines == [(0, "stderr", b"of rank 0\n")]


def test_bytes_that_are_no_text_stay_as_they_are():
    assert Received().feed(b"[1,0]<stdout>: \xff\xfe\n").lines == [(0, "stdout", b"\xff\xfe\n")]


def test_other_runtimes_mark_lines_in_their_own_way():
    received = Received(Mpich("mpiexec", "HYDRA build details")).feed(b"[1] a line\nits own\n", stream="stderr")
    assert received.lines == [(1, "stderr", b"a line\n")]
    assert received.output.said == "its own"
