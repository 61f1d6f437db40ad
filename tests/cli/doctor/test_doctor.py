"""`easyscale doctor` as a program: on this machine, in one that is broken, and on emulated hosts."""

import importlib.metadata
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from launches import environment, run

import easyscale

sys.path.insert(0, str(Path(__file__).parents[2] / "faults"))

from hosts import Hosts  # noqa: E402

DOCTOR = [sys.executable, "-m", "easyscale", "doctor"]
MAY_MOUNT = subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0
on_hosts = pytest.mark.skipif(not Hosts.are_possible(), reason="needs root, and Linux's namespaces")


def lines_of(done):
    """The lines by what they begin with: grade, and what is looked at."""
    assert not re.search("Traceback", done.stderr), done.stderr
    found = [
        re.match(r"(ok|warning|fails) +((?:node\d: )?[^:]*): (.*)", line) for line in done.stdout.splitlines()[:-1]
    ]
    assert all(found), done.stdout
    return [(line[1], line[2], line[3]) for line in found]


def test_where_training_works_two_ranks_have_trained_and_it_says_how_fast_messages_are():
    done = run(DOCTOR, timeout=120)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "training works"), done.stdout + done.stderr
    lines = lines_of(done)
    assert "fails" not in [grade for grade, *_ in lines]
    software, machine = "settings Python Keras backend MPI GPUs exchanges", "cores memory /dev/shm open+files container"
    topics = f"{software} {machine} clock messages training"
    assert [topic for _, topic, _ in lines] == [topic.replace("+", " ") for topic in topics.split()]
    texts = {topic: text for _, topic, text in lines}
    assert texts["Keras"] == f"keras {importlib.metadata.version('keras')}"
    assert set(texts["exchanges"].partition(";")[0].split(", ")) == set(easyscale.exchange.available())
    speed = re.fullmatch(r"rank 0 to rank 1: latency ([\d.]+) us, bandwidth ([\d,]+) MB/s", texts["messages"])
    assert 0 < float(speed[1]) < 1e5 and float(speed[2].replace(",", "")) > 1
    assert texts["training"].startswith("2 ranks have trained with tensorflow, over ")


@pytest.mark.full
@pytest.mark.skipif(not MAY_MOUNT, reason="needs root, and util-linux")
def test_a_small_dev_shm_and_few_files_are_found_with_their_cures():
    line = "mount -t tmpfs -o size=4m tmpfs /dev/shm && ulimit -n 64 && exec " + " ".join(DOCTOR)
    pipes = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    done = subprocess.run(["unshare", "--mount", "sh", "-c", line], env=environment(), timeout=120, **pipes)
    texts = {topic: (grade, text) for grade, topic, text in lines_of(done)}
    grade, text = texts["/dev/shm"]
    assert grade != "ok" and text.startswith("4.2 MB free of 4.2 MB") and "mount -o remount,size=8G /dev/shm" in text
    grade, text = texts["open files"]
    assert grade != "ok" and text.endswith("Raise it: ulimit -n 1024")


def test_a_limit_with_which_no_rank_can_be_started_fails():
    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (28, 28))

    pipes = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    done = subprocess.run(DOCTOR, env=environment(), timeout=120, preexec_fn=few, **pipes)
    assert done.returncode == 1
    assert ("fails", "open files") in [line[:2] for line in lines_of(done)]


def doctor_on(hosts, number=0, *options):
    names = ",".join(f"{name}:1" for name in hosts.names)
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = hosts.start(number, [*DOCTOR, "--hosts", names, *options], **pipes)
    output, errors = process.communicate(timeout=150)
    return subprocess.CompletedProcess([], process.returncode, output, errors)


@pytest.mark.full
@on_hosts
def test_hosts_with_another_keras_and_hosts_that_are_down_are_named():
    found = importlib.metadata.distribution("keras")
    metadata = found.locate_file(f"keras-{found.version}.dist-info/METADATA")
    with Hosts(2) as hosts:
        done = doctor_on(hosts)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "training works"), done.stdout + done.stderr
        lines = lines_of(done)
        assert ("ok", "versions", "the same on all hosts") in lines
        network = next(text for _, topic, text in lines if topic == "network")
        assert re.fullmatch(r"node0 to node1: latency [\d.,]+ us, bandwidth [\d,]+ MB/s.*", network)
        clock = next(text for _, topic, text in lines if topic == "node1: clock" and "that of node0" in text)
        assert float(clock.split()[0]) < 0.5

        other = Path(metadata).read_text().replace(f"\nVersion: {found.version}", "\nVersion: 3.99.0", 1)
        script = f"cat >/dev/shm/METADATA <<'E'\n{other}\nE\nmount --bind /dev/shm/METADATA {metadata}"
        assert hosts.start(1, ["sh", "-c", script]).wait() == 0
        done = doctor_on(hosts)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "training would fail")
        different = [text for grade, topic, text in lines_of(done) if (grade, topic) == ("fails", "versions")]
        assert different == [
            f"keras must be the same on all hosts. Received: {found.version} on node0, 3.99.0 on node1. "
            f"Run on node1: pip install keras=={found.version}"
        ]

        hosts.lose(1)
        done = doctor_on(hosts, 0, "--timeout", "12")
        assert done.returncode == 1
        failing = [(topic, text) for grade, topic, text in lines_of(done) if grade == "fails"]
        assert [topic for topic, _ in failing] == ["node1: reached"]
        assert "See that `ssh node1 true` works and asks for nothing" in failing[0][1]
