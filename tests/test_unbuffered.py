"""Texts that a rank writes without a buffer arrive whole."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from easyscale.unbuffered import _Whole


def test_a_write_that_signals_interrupt_is_whole():
    reader, writer = os.pipe()
    found = bytearray()
    signals = []

    def read():
        while len(found) < 1_000_000:
            if len(signals) > len(found) // 200_000:  # a signal for each piece
                found.extend(os.read(reader, 200_000))

    before = signal.signal(signal.SIGALRM, lambda *_: signals.append(1))
    thread = threading.Thread(target=read)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        thread.start()
        with _Whole(writer, "wb") as file:
            assert file.write(b"x" * 1_000_000) == 1_000_000
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    thread.join(20)
    os.close(reader)
    assert found == b"x" * 1_000_000


SCRIPT = """
import sys
before = sys.stdout, sys.stderr
from easyscale.unbuffered import write_whole
write_whole()
assert (sys.stdout, sys.stderr) == before
print(type(sys.stdout.buffer).__name__, sys.stdout.name, sys.stdout.encoding, sys.stdout.errors, "\\u00e9")
print("no newline", end="", flush=True)
sys.stdout.buffer.write(b", bytes\\n")
print("error", file=sys.stderr)
"""


@pytest.mark.parametrize(("unbuffered", "kind"), [("", "BufferedWriter"), ("1", "_Whole")])
def test_standard_files_stay_what_they_are(unbuffered, kind):
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, check=True)
    assert done.stdout.decode() == f"{kind} <stdout> utf-8 strict \u00e9\nno newline, bytes\n"
    assert done.stderr == b"error\n"
