"""Whoever reads the launcher's output may stand still: the job can be ended all the same, and no output is lost."""

import fcntl
import os
import signal
import subprocess
import threading
import time

import pytest

from easyscale.cli.launch import output

WRITES = """
import os, signal, sys, time
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
written = 0
while not told and written < 3_000_000:
    written += os.write(1, b"x" * 999 + b"\\n")
open(sys.argv[1], "w").close()
while not told:
    time.sleep(0.01)
sys.exit(75)
"""

LONG = """
import os, sys, easyscale
easyscale.communicator.get().barrier()
if easyscale.rank() == 0:
    open(sys.argv[1], "w").close()
    sys.stdout.write("y" * 9_000_000 + "\\n")
    sys.stdout.flush()
easyscale.communicator.get().barrier()
"""


@pytest.fixture
def pipe():
    """Both ends of a pipe that nobody reads yet."""
    reader, writer = os.pipe()
    yield reader, writer
    for file in (reader, writer):
        os.close(file)


def wait_for(path, process):
    end = time.monotonic() + 120
    while not path.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    assert path.exists()


def test_a_sink_keeps_what_the_reader_does_not_take(pipe):
    reader, writer = pipe
    data = os.urandom(output._MOST_KEPT + 200_000)
    sink = output._Sink(writer, None)
    sink.through(data)
    assert sink.is_full
    found = bytearray()

    def read():
        while len(found) < len(data):
            found.extend(os.read(reader, 1 << 20))

    thread = threading.Thread(target=read)
    thread.start()
    sink.finish(None)
    thread.join(20)
    assert found == data
    assert not sink.is_full
    assert not fcntl.fcntl(writer, fcntl.F_GETFL) & os.O_NONBLOCK, "other processes have the file too"


def test_a_sink_drops_what_is_too_much_when_the_job_is_to_end(pipe):
    sink = output._Sink(pipe[1], None)
    sink.drops = True
    for _ in range(10):
        sink.through(b"x" * 1_000_000)
    assert not sink.is_full
    assert len(sink._kept) < output._MOST_KEPT + 1_000_001
    begun = time.monotonic()
    sink.finish(0.1)
    assert time.monotonic() - begun < 5


def test_a_job_ends_at_sigterm_while_the_reader_stands_still(ranks, script, tmp_path, pipe):
    written = tmp_path / "written"
    process = ranks.start("launch", "-n", "1", "--restarts", "1", script(WRITES), written, stdout=pipe[1])
    wait_for(written, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 75


def test_a_reader_that_goes_on_gets_all_output(ranks, script, tmp_path):
    begun = tmp_path / "begun"
    options = ["-n", "2", "--stall-timeout", "1.5"]
    process = ranks.start("launch", *options, script(LONG), begun, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(begun, process)
    time.sleep(2.2)  # longer than the time-out, after which a rank is asked where it is, and shorter than twice
    out, err = process.communicate(timeout=120)
    assert out == b"y" * 9_000_000 + b"\n"
    assert process.returncode == 0, err
