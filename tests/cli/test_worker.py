"""The share of the cores, and the settings, that each rank gets."""

import pytest

from easyscale.cli.launch.worker import cores_of_rank, thread_settings, threads_of_rank


@pytest.mark.parametrize("cores", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_shares_are_contiguous_disjoint_and_complete(cores, size):
    have = list(range(10, 10 + cores))
    cores_of = [cores_of_rank(have, rank, size) for rank in range(size)]
    if cores < size:
        assert cores_of == [have] * size
    else:
        assert sum(cores_of, []) == have
        assert min(map(len, cores_of)) == cores // size


@pytest.mark.parametrize(
    "cores, quota, size, threads",
    [
        (8, None, 2, 4),
        (8, None, 3, 2),
        (2, None, 4, 1),
        (64, 4.0, 2, 2),  # a pod with a limit of 4 CPUs, on a node with 64
        (64, 4.0, 1, 4),
        (4, 8.0, 2, 2),
        (64, 0.5, 2, 1),
        (64, 3.5, 1, 3),
    ],
)
def test_threads_are_no_more_than_the_cores_or_than_the_time_of_a_container(cores, quota, size, threads):
    assert threads_of_rank(cores, quota, size) == threads


def test_threads_follow_the_share_unless_the_user_has_set_them():
    settings = thread_settings({"OMP_NUM_THREADS": "5", "PATH": "/bin"}, 2, rank=0)
    assert settings == {"TF_NUM_INTRAOP_THREADS": "2", "TF_NUM_INTEROP_THREADS": "2", "PYTHONUNBUFFERED": "1"}


def test_only_the_chief_lets_tensorflow_introduce_the_machine():
    assert thread_settings({}, 1, rank=1)["TF_CPP_MIN_LOG_LEVEL"] == "1"
    assert "TF_CPP_MIN_LOG_LEVEL" not in thread_settings({}, 1, rank=0)
    assert "TF_CPP_MIN_LOG_LEVEL" not in thread_settings({"TF_CPP_MIN_LOG_LEVEL": "0"}, 1, rank=1)
