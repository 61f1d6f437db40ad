"""Folders of checks that run on several ranks."""

import atexit
import shutil
import tempfile
from pathlib import Path

import easyscale
from easyscale import communicator


def new_folder():
    """An empty folder that all ranks see, until the chief ends."""
    own = tempfile.mkdtemp() if easyscale.is_chief() else None
    if own is not None:
        atexit.register(shutil.rmtree, own, ignore_errors=True)
    return Path(communicator.get().all_gather_object(own)[0])


def done_with(folder):
    """Remove it when no rank needs it any more."""
    communicator.get().all_gather_object(None)
    if easyscale.is_chief():
        shutil.rmtree(folder)
