"""Files that somebody else may have made are not trusted: what is only named like a checkpoint, and what is forged."""

import hashlib
import json
import os
import pickle
import re
import socket
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from checkpoint.folders import write

from easyscale.checkpoint.folder import Checkpoint, Checkpoints

ODD = {
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
    "Too many levels of symbolic links": lambda path: path.symlink_to(path.name),
    "a named pipe": os.mkfifo,
    "a folder": lambda path: path.mkdir(),
    "a socket": lambda path: socket.socket(socket.AF_UNIX).bind(str(path)),
    "a device": lambda path: path.symlink_to("/dev/null"),
}


@pytest.mark.parametrize("kind", ODD)
def test_what_is_only_named_like_a_checkpoint_is_passed_over_and_told_of(tmp_path, kind, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    path = Path(f"step-000000099-{'0' * 32}.npz")
    ODD[kind](path)
    folder = Path(".")
    assert Checkpoints(folder).read() == (None, {})
    assert Checkpoints(folder).passed_over() == {path: kind}
    write(folder, 5, 10, keep=2)
    write(folder, 15, keep=2)
    assert Checkpoints(folder).read()[0].about == {"step": 15}
    assert len(list(folder.glob("*.npz"))) == 3 and path in folder.glob("*.npz")


def test_a_link_to_a_checkpoint_is_one(tmp_path):
    (path,) = write(tmp_path / "there", 5)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / path.name).symlink_to(path)
    assert Checkpoints(tmp_path / "here").read()[0].about == {"step": 5}


def forge(folder, header, data=b"", compress=zipfile.ZIP_STORED, names=("json.npy",)):
    """Write a file with the right checksum, whose arrays have this header."""
    path = folder / "forged"
    with zipfile.ZipFile(path, "w", compress) as archive:
        for name in names:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of names that are there twice
                member = archive.open(name, "w")
            with member:
                np.lib.format.write_array_header_1_0(member, header)
                member.write(data)
    with zipfile.ZipFile(path) as archive:
        members = [[member.filename, member.file_size, member.CRC] for member in archive.infolist()]
    digest = hashlib.sha256(json.dumps(members).encode()).hexdigest()[:32]
    path.rename(folder / f"step-000000009-{digest}.npz")


def header(shape, descr="|u1", fortran_order=False):
    return {"descr": descr, "fortran_order": fortran_order, "shape": shape}


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"header": header((1 << 50,))}, "another size than its shape says"),
        ({"header": header((1 << 40, 1 << 40), "<f8")}, "another size than its shape says"),
        ({"header": header((-2, -3)), "data": bytes(6)}, "another size than its shape says"),
        ({"header": header((1 << 60,), "<U0")}, "of another kind"),
        ({"header": header((2, 2), "<f4", True), "data": bytes(16)}, "of another kind"),
        ({"header": header((1,), [("a", "<f4")]), "data": bytes(4)}, "of another kind"),
        ({"header": header((1 << 25,)), "data": bytes(1 << 25), "compress": zipfile.ZIP_DEFLATED}, "are compressed"),
        ({"header": header((2,)), "data": bytes(2), "names": ["a.npy", "a.npy"]}, "two of its arrays have one name"),
    ],
)
def test_sizes_are_checked_before_memory_is_taken(tmp_path, made, message, monkeypatch):
    forge(tmp_path, **made)
    monkeypatch.setattr(np, "empty", lambda *arguments: pytest.fail("memory was taken"))
    found, wrong = Checkpoints(tmp_path).read()
    assert found is None
    (said,) = wrong.values()
    assert message in said and "\n" not in said


LONG = "its JSON is longer than"
MANY = "its JSON must have 67108864 bytes and 4194304 values at most"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"about": [' + b"[]," * 2_200_000 + b'[]], "kinds": {}}', MANY),
        (b'{"about": [' + b"0," * 4_300_000 + b'0], "kinds": {}}', MANY),
        (b'{"about": "' + b"x" * (1 << 26) + b'", "kinds": {}}', LONG),
        (b'{"about": ' + b"[" * 100_000 + b"]" * 100_000 + b', "kinds": {}}', "maximum recursion depth"),
    ],
    ids=["lists", "numbers", "text", "nested"],
)
def test_json_takes_a_bounded_amount_of_memory(tmp_path, text, message, monkeypatch):
    forge(tmp_path, header=header((len(text),)), data=text)
    if message in (LONG, MANY):
        monkeypatch.setattr(json, "loads", lambda *_: pytest.fail("memory was taken"))
    found, wrong = Checkpoints(tmp_path).read()
    assert found is None
    assert message in wrong.popitem()[1]


def test_what_could_not_be_read_again_is_not_written(tmp_path):
    with pytest.raises(ValueError, match=f"{MANY}. Received: .* Keep less in attributes of callbacks"):
        Checkpoints(tmp_path).write(5, Checkpoint({"many": [0] * (1 << 22)}, {}))
    assert list(tmp_path.iterdir()) == []


def test_temporary_names_cannot_be_guessed_and_are_not_followed(tmp_path, monkeypatch):
    opened = []

    def note(path, flags, mode=0o777, *, original=os.open, **rest):
        opened.append((os.path.basename(path), flags))
        return original(path, flags, mode, **rest)

    monkeypatch.setattr(os, "open", note)
    write(tmp_path, 5, 6)
    names = [(name, flags) for name, flags in opened if name.endswith(".part")]
    assert len({name for name, _ in names}) == 2
    for name, flags in names:
        assert re.fullmatch(r"\.[0-9a-f]{32}\.part", name)
        assert flags & os.O_EXCL and flags & os.O_NOFOLLOW


class Evil:
    def __reduce__(self):
        return os.system, ("exit 1",)


def test_a_checkpoint_is_never_unpickled(tmp_path, monkeypatch):
    """Also if it was made by somebody who can give it the right checksum."""
    (path,) = write(tmp_path, 5)
    with zipfile.ZipFile(path, "a") as archive, archive.open("evil.npy", "w") as member:
        np.lib.format.write_array(member, np.array([Evil()], object), allow_pickle=True)
    with zipfile.ZipFile(path) as archive:
        members = [[member.filename, member.file_size, member.CRC] for member in archive.infolist()]
    digest = hashlib.sha256(json.dumps(members).encode()).hexdigest()[:32]
    path.rename(tmp_path / f"step-000000005-{digest}.npz")
    monkeypatch.setattr(pickle, "load", lambda *arguments, **options: pytest.fail("unpickled"))
    found, wrong = Checkpoints(tmp_path).read()
    assert found is None
    assert "Object arrays cannot be loaded when allow_pickle=False" in wrong.popitem()[1]


def test_an_array_of_objects_is_not_written(tmp_path):
    with pytest.raises((TypeError, ValueError)):
        Checkpoints(tmp_path).write(5, Checkpoint({}, {"evil": np.array([Evil()], object)}))
    assert list(tmp_path.iterdir()) == []
