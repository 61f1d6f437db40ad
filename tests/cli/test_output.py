"""What the launcher shows of what ranks write."""

import errno
import os
import time

import pytest

from easyscale.cli.launch import output
from easyscale.cli.launch.logs import Logs
from easyscale.errors import LaunchError

FIRST = b'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    ^^^\nValueError: x\n'
LINK = b"\nThe above exception was the direct cause of the following exception:\n\n"


@pytest.fixture
def shown(capfdbinary):
    """A function that feeds (rank, stream, data) and returns what stands on stdout and stderr."""

    def show(*pieces, end: bool = True) -> tuple[bytes, bytes]:
        screen = output.Screen()
        for piece in pieces:
            screen.feed(*piece)
        if end:
            screen.end()
        return tuple(capfdbinary.readouterr())

    return show


def test_lines_of_other_ranks_are_marked_and_whole(shown):
    out, err = shown((1, "stdout", b"one\ntw"), (2, "stderr", b"error\n"), (1, "stdout", b"o\n"), (1, "stdout", b"end"))
    assert out == b"[1] one\n[1] two\n[1] end\n"
    assert err == b"[2] error\n"


def test_bytes_of_the_chief_come_as_they_are_and_at_once(shown):
    data = b"\r 1/3 [=>...]\x08\x08\xff\xfe no newline"
    assert shown((0, "stdout", data), end=False)[0] == data


def test_lines_of_other_ranks_wait_for_the_chiefs_line(shown):
    pieces = (0, "stdout", b"begun "), (1, "stdout", b"other\n"), (0, "stdout", b"ended\n")
    assert shown(*pieces)[0] == b"begun ended\n[1] other\n"


def test_lines_of_other_ranks_do_not_wait_for_ever(capfdbinary, monkeypatch):
    monkeypatch.setattr(output, "_PATIENCE", 0.01)
    screen = output.Screen()
    screen.feed(0, "stdout", b"begun")
    screen.feed(1, "stdout", b"other\n")
    assert capfdbinary.readouterr().out == b"begun"
    time.sleep(0.02)
    screen.tick()
    assert capfdbinary.readouterr().out == b"\n[1] other\n"


def test_lines_of_ranks_on_several_hosts_show_where_they_come_from(capfdbinary):
    screen = output.Screen(hosts=["node0", "node0", "node1"])
    for rank in (1, 2, 3):  # the last one is in the place of another
        screen.feed(rank, "stdout", b"here\n")
    assert capfdbinary.readouterr().out == b"[1 node0] here\n[2 node1] here\n[3] here\n"


def test_a_progress_bar_of_another_rank_shows_its_last_state(shown):
    assert shown((1, "stdout", b"\r1/3"), (1, "stdout", b"\r2/3\r"), (1, "stdout", b"3/3\r\n"))[0] == b"[1] 3/3\n"


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0), (2, 1)])
def test_a_traceback_is_shown_once(shown, first, second):
    block = FIRST + LINK + FIRST.replace(b"ValueError", b"KeyError")
    alone = shown((first, "stderr", block))[1]
    assert alone.count(b"Traceback") == 2
    assert shown((first, "stderr", block), (second, "stderr", block))[1] == alone


def test_a_different_traceback_is_shown(shown):
    _, err = shown((1, "stderr", FIRST), (2, "stderr", FIRST.replace(b"x", b"y") + b"after\n"))
    assert err.count(b"Traceback") == 2
    assert err.endswith(b"[2] ValueError: y\n[2] after\n")


def test_a_rank_may_repeat_its_own_traceback(shown):
    assert shown((1, "stderr", FIRST), (1, "stderr", FIRST))[1].count(b"ValueError") == 2


def test_a_traceback_cut_off_is_not_lost(shown):
    assert shown((1, "stderr", FIRST[:60]))[1].startswith(b"[1] Traceback")
    assert shown((0, "stderr", FIRST[:60]))[1] == FIRST[:60]


def test_a_traceback_in_pieces_of_a_byte_is_known_again(shown):
    pieces = [(rank, "stderr", FIRST[i : i + 1]) for rank in (0, 1) for i in range(len(FIRST))]
    assert shown(*pieces)[1] == FIRST


@pytest.mark.parametrize("line", [b"ValueError: wrong (a.py, line 3)\n", b"EasyScaleWarning: hardly\n"])
def test_an_error_or_warning_of_one_line_is_shown_once(shown, line):
    assert shown((0, "stderr", line), (1, "stderr", line), (2, "stderr", line))[1] == line
    assert shown((1, "stderr", line + b"else\n"), (0, "stderr", line))[1] == b"[1] " + line + b"[1] else\n"
    assert shown((0, "stderr", line), (1, "stderr", b"again " + line), (0, "stderr", line))[1].count(line) == 3


def test_lines_in_files_are_whole_whatever_comes_between_their_pieces(tmp_path):
    """An unbuffered `print` of two words writes them one after the other."""
    logs = Logs(str(tmp_path))
    for stream, piece in (("stdout", b"out"), ("stderr", b"err\n"), ("stdout", b" 0\nand"), ("stderr", b"or")):
        logs.of_rank(0, stream, piece)
        logs.shown(1 + (stream == "stderr"), piece)
    texts = [(tmp_path / name).read_bytes() for name in ("rank_0.log", "job.log")]
    assert texts == [b"err\nout 0\n"] * 2
    logs.end()
    assert (tmp_path / "rank_0.log").read_bytes() == b"err\nout 0\nandor"


@pytest.mark.parametrize("name", ["job.log", "rank_0.log"])
@pytest.mark.parametrize("kind", ["link", "second name", "named pipe", "folder"])
def test_what_others_have_put_in_the_place_of_a_log_is_not_written_to(tmp_path, name, kind):
    folder, precious = tmp_path / "logs", tmp_path / "precious"
    folder.mkdir()
    precious.write_text("precious")
    make = {"link": os.symlink, "second name": os.link}
    if kind in make:
        make[kind](precious, folder / name)
    else:
        {"named pipe": os.mkfifo, "folder": os.mkdir}[kind](folder / name)
    with pytest.raises(LaunchError, match=f"a log must be a file of its own. Received: '.*{name}', which is a link"):
        Logs(str(folder))
    assert precious.read_text() == "precious"


def test_a_link_that_comes_later_is_not_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    logs = Logs(str(tmp_path / "logs"))
    (tmp_path / "logs" / "rank_1.log").symlink_to(precious)
    logs.of_rank(1, "stdout", b"a line\n")
    logs.end()
    assert precious.read_text() == "precious"


def test_logs_that_cannot_be_written_are_reported_once(tmp_path, capfdbinary, monkeypatch):
    screen = output.Screen(logs=Logs(str(tmp_path)))
    write = os.write

    def full(file, data):
        if os.path.samestat(os.fstat(file), (tmp_path / "rank_1.log").stat()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data)

    monkeypatch.setattr(os, "write", full)
    for number in range(3):
        screen.feed(1, "stdout", b"line %d\n" % number)
        screen.tick()
    screen.end()
    out, err = capfdbinary.readouterr()
    reason = f"{tmp_path / 'rank_1.log'}: No space left on device"
    assert err.decode() == f"easyscale: lines are lost from the logs, and the job goes on: {reason}\n"
    assert out.count(b"[1] line") == 3


@pytest.mark.parametrize("rank", [0, 1])
def test_what_libraries_log_while_they_start_is_hidden(shown, rank):
    lines = [
        b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n",
        b"I0000 00:00:1795919932.051321   15195 port.cc:153] oneDNN custom operations are on.\n",
        b"To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow.\n",
        b"F0000 00:00:1795919932.051321   15195 port.cc:153] fatal\n",
        b"E1129 02:39:06.906821   15195 gpu.cc:1] later\n",
    ]
    mark = b"[1] " if rank else b""
    assert shown((rank, "stderr", b"".join(lines))) == (b"", b"".join(mark + line for line in lines[3:]))
