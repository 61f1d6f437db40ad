"""Processes that a test starts, and all that came of them, found by a variable in their environment."""

import os
import time
import uuid
from pathlib import Path

__all__ = ["Marked"]


class Marked:
    """Finds processes by their environment.

    Attributes:
        environment: Dict of the variables that a process is to be started with.
    """

    def __init__(self):
        self._mark = f"EASYSCALE_TEST={uuid.uuid4().hex}"
        name, _, value = self._mark.partition("=")
        self.environment = {**os.environ, name: value}

    def alive(self) -> list[str]:
        """Command lines of the processes that live."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self._mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append((folder / "cmdline").read_text().replace("\0", " "))
            except OSError:
                pass
        return found

    def wait_until_gone(self, timeout: float = 60.0) -> list[str]:
        """Command lines of the processes that live after so many seconds, or none."""
        end = time.monotonic() + timeout
        while (alive := self.alive()) and time.monotonic() < end:
            time.sleep(0.05)
        return alive
