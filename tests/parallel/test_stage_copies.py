"""Arrays of a checkpoint that stages have, by stages that are threads."""

import numpy as np

from easyscale.checkpoint import file as checkpoint_file
from easyscale.checkpoint.folder import Checkpoint, Checkpoints
from easyscale.layout.specs import Spec
from easyscale.mesh import Mesh
from easyscale.training.pipelined.stage_copies import StageCopies

NEEDED = {"weight/0": [0], "weight/1": [1, 2], "weight/2": [2], "weight/3": [1]}
SHAPES = {"weight/0": (3,), "weight/1": (5, 2), "weight/2": (), "weight/3": (0, 4)}
SPECS = {name: Spec(shape, np.dtype("float32")) for name, shape in SHAPES.items()}
ARRAYS = {name: np.full(shape, number, "float32") for number, (name, shape) in enumerate(SHAPES.items())}


def copies_of(comm):
    return StageCopies(Mesh(comm, {"data": comm.size // 3, "model": 3}), lambda: NEEDED)


def write(comm, folder, times=1):
    """Have the stages hold their arrays, and the chief write them so many times; return what each has sent."""
    copies = copies_of(comm)
    own = {name: ARRAYS[name] for name, (owner, *_) in NEEDED.items() if owner == comm.rank}
    arrays = copies.hold(SPECS, own)
    before = comm.sent.bytes
    copies.answer()
    if comm.rank == 0:
        for number in range(times):
            Checkpoints(folder).write(number, Checkpoint({}, arrays))
        copies.end()
    copies.finish()
    return comm.sent.bytes - before


def test_the_chief_writes_what_each_stage_has_when_it_comes_to_it(run_ranks, tmp_path):
    sent = run_ranks(3, lambda comm: write(comm, tmp_path))
    found, _ = Checkpoints(tmp_path).read()
    assert list(found.arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found.arrays[name], array)
    assert sent == [2 * 8 + 2 * 8, 40, 4]  # it asks for two arrays that are not empty, and says to two that it ends


def test_who_writes_anew_asks_again(run_ranks, tmp_path):
    sent = run_ranks(3, lambda comm: write(comm, tmp_path, times=3))
    assert sent == [3 * 2 * 8 + 2 * 8, 3 * 40, 3 * 4]
    assert len(list(tmp_path.glob("*.npz"))) == 3


def test_each_rank_gets_what_its_stage_needs(run_ranks, tmp_path):
    common = {"metrics": np.arange(4.0), "callback/0/names/0": np.array(["a", "bc"])}
    Checkpoints(tmp_path).write(5, Checkpoint({"steps": 5}, {**ARRAYS, **common}))

    def on_rank(comm):
        stored = {}
        if comm.rank == 0:
            found, _ = Checkpoints(tmp_path).read(checkpoint_file.open_whole)
            stored = found.arrays
        copies = copies_of(comm)
        comm.barrier()
        before = comm.sent.bytes
        return copies.hand_out(stored), comm.sent.bytes - before

    for rank, (found, _) in enumerate(run_ranks(6, on_rank)):
        assert found.keys() == {*ARRAYS, *common}
        for name, array in ARRAYS.items():
            is_own = rank % 3 in NEEDED[name]
            np.testing.assert_array_equal(found[name], array if is_own else [])
        for name, array in common.items():
            np.testing.assert_array_equal(found[name], array)
