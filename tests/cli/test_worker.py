"""The share of the cores, and the settings, that each rank gets."""

import pytest

from easyscale.cli.launch.worker import cores_of_rank, thread_settings

pytestmark = pytest.mark.timeout(60)


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


def test_threads_follow_the_share_unless_the_user_has_set_them():
    settings = thread_settings({"OMP_NUM_THREADS": "5", "PATH": "/bin"}, 2, rank=0)
    assert settings == {"TF_NUM_INTRAOP_THREADS": "2", "TF_NUM_INTEROP_THREADS": "2", "PYTHONUNBUFFERED": "1"}


def test_only_the_chief_lets_tensorflow_introduce_the_machine():
    assert thread_settings({}, 1, rank=1)["TF_CPP_MIN_LOG_LEVEL"] == "1"
    assert "TF_CPP_MIN_LOG_LEVEL" not in thread_settings({}, 1, rank=0)
    assert "TF_CPP_MIN_LOG_LEVEL" not in thread_settings({"TF_CPP_MIN_LOG_LEVEL": "0"}, 1, rank=1)
