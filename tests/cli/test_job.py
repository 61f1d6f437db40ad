"""`easyscale launch` over the real mpirun: output, exit codes, signals, and that nothing stays behind."""

import functools
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launches import RANK


def read_until(file: int, text: bytes, timeout: float = 20) -> bytes:
    """Read from a file descriptor until `text` has come."""
    data, end = b"", time.monotonic() + timeout
    while text not in data:
        ready, _, _ = select.select([file], [], [], max(0, end - time.monotonic()))
        assert ready, f"{text!r} did not come. Received: {data!r}"
        piece = os.read(file, 4096)
        assert piece, f"{text!r} did not come before the end. Received: {data!r}"
        data += piece
    return data


def test_arguments_environment_and_cores_reach_every_rank(ranks, script, tmp_path):
    path = script(
        RANK + "import json\n"
        "seen = {'argv': sys.argv[1:], 'exchange': os.environ['EASYSCALE_EXCHANGE'],\n"
        "        'threads': os.environ['OMP_NUM_THREADS'], 'cores': sorted(os.sched_getaffinity(0))}\n"
        "open(os.path.join(os.path.dirname(__file__), f'seen{rank}'), 'w').write(json.dumps(seen))\n"
    )
    own = ["--exchange", "x", "-n", "7", "--help", "--", "a b"]
    done = ranks.run("launch", "-n", "2", "--exchange", "tree", path, *own)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    seen = [json.loads((tmp_path / f"seen{rank}").read_text()) for rank in (0, 1)]
    have = sorted(os.sched_getaffinity(0))
    for each in seen:
        assert each["argv"] == own
        assert each["exchange"] == "tree"
        assert each["threads"] == str(max(1, len(have) // 2))
    if len(have) >= 2:
        assert seen[0]["cores"] + seen[1]["cores"] == have


def test_scripts_for_other_tools_find_who_they_are(ranks, script):
    path = script(
        "import os, socket\n"
        "names = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'KERAS_DISTRIBUTION_NUM_PROCESSES',\n"
        "         'KERAS_DISTRIBUTION_PROCESS_ID', 'MASTER_ADDR', 'MASTER_PORT', 'KERAS_DISTRIBUTION_JOB_ADDRESSES')\n"
        "print(*map(os.environ.get, names))\n"
        "if os.environ['RANK'] == '0':\n"
        "    socket.socket().bind((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])))\n"
    )
    for count in (1, 2):
        done = ranks.run("launch", "-n", str(count), path)
        assert (done.returncode, done.stderr) == (0, "")
        lines = {int(line.split()[0]): line.split() for line in done.stdout.replace("[1] ", "").splitlines()}
        addresses = {tuple(words[6:]) for words in lines.values()}
        assert len(addresses) == 1
        ((host, port, together),) = addresses
        assert (host, f"{host}:{port}") == ("127.0.0.1", together)
        for rank in range(count):
            assert lines[rank][:6] == [str(rank), str(count), str(rank), str(count), str(count), str(rank)]


def test_what_ranks_write_is_in_files_and_only_some_is_shown(ranks, script, tmp_path):
    path = script(RANK + "print('out', rank, flush=True); print('err', rank, file=sys.stderr)")
    folder = tmp_path / "of" / "logs"
    for _ in range(2):  # the files are written anew
        done = ranks.run("launch", "-n", "3", "--log-dir", str(folder), "--ranks", "0,2", path)
        assert done.returncode == 0
        assert sorted(done.stdout.splitlines()) == ["[2] out 2", "out 0"]
        assert sorted(done.stderr.splitlines()) == ["[2] err 2", "err 0"]
    for rank in range(3):
        assert sorted((folder / f"rank_{rank}.log").read_text().splitlines()) == [f"err {rank}", f"out {rank}"]
    shown = sorted((folder / "job.log").read_text().splitlines())
    assert shown == ["[2] err 2", "[2] out 2", "err 0", "out 0"]


def test_a_folder_for_output_that_cannot_be_made_is_one_line(ranks, script, tmp_path):
    (tmp_path / "file").write_text("")
    done = ranks.run("launch", "-n", "2", "--log-dir", str(tmp_path / "file"), script(""))
    assert done.returncode == 1
    assert done.stderr.startswith("easyscale: --log-dir must be a folder that can be written to. Received: ")
    assert done.stderr.count("\n") == 1


def test_output_is_marked_and_complete(ranks, script):
    path = script(
        RANK + "for i in range(20000): print(rank, i)\nprint('error', rank, file=sys.stderr)\nprint('end', end='')"
    )
    done = ranks.run("launch", "-n", "3", path)
    assert done.returncode == 0
    lines = done.stdout.split("\n")
    assert [line for line in lines if line.startswith("0 ")] == [f"0 {i}" for i in range(20000)]
    for rank in (1, 2):
        own = [line for line in lines if line.startswith(f"[{rank}] ")]
        assert own == [*(f"[{rank}] {rank} {i}" for i in range(20000)), f"[{rank}] end"]
    assert sorted(done.stderr.splitlines()) == ["[1] error 1", "[2] error 2", "error 0"]


def test_the_printed_command_line_works_when_pasted(ranks, script):
    path = script(RANK + "print('rank', rank, os.environ['EASYSCALE_EXCHANGE'], sys.argv[1])")
    line = ranks.run("launch", "--dry-run", "-n", "3", "--exchange", "ring", path, "it's").stdout
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=120, env=ranks.environment)
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"rank \d ring it's", done.stdout)) == [f"rank {rank} ring it's" for rank in range(3)]


def test_what_mpirun_forwards_is_marked_alike(ranks, script):
    # A rank that cannot reach the launcher's socket, as on another host.
    path = script(
        RANK + "print('rank', rank); print('error', rank, file=sys.stderr); time.sleep(0.5 * rank)\n"
        "sys.exit(3) if rank == 1 else time.sleep(3)"
    )
    code = (
        "import socket, sys; from easyscale.cli.launch import streams; from easyscale.cli.main import main\n"
        "own = streams.Streams.__init__\n"
        "def elsewhere(self, *arguments): own(self, *arguments); self.name += 'x'\n"
        "streams.Streams.__init__ = elsewhere\n"
        f"main(['launch', '-n', '2', {path!r}])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=ranks.environment
    )
    assert done.returncode == 3
    assert sorted(done.stdout.splitlines()) == ["[1] rank 1", "rank 0"]
    assert done.stderr.splitlines()[-1].startswith("easyscale: rank 1 ")
    assert sorted(done.stderr.splitlines()[:-1]) == ["[1] error 1", "error 0"]


@pytest.mark.parametrize("count", [1, 2])
def test_the_exit_code_is_the_scripts(ranks, script, count):
    done = ranks.run("launch", "-n", count, script("import sys; sys.exit(3)"))
    assert done.returncode == 3


def test_hosts_that_do_not_answer_show_what_mpirun_says(ranks, script):
    environment = {**ranks.environment, "OMPI_MCA_plm_ssh_agent": "false", "PRTE_MCA_plm_ssh_agent": "false"}
    done = ranks.run("launch", "-n", "2", "--hosts", "no-such-host:2", script(""), env=environment)
    assert done.returncode == 1
    assert "daemon failed to report back" in done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        "easyscale: each host must be one that mpirun can log in to. Received: no-such-host, which it cannot."
    )


def test_the_chiefs_partial_lines_stream_live(ranks, script):
    path = script(
        RANK + "if rank == 0:\n"
        "    assert sys.stdout.isatty() and os.get_terminal_size(1) == (91, 33)\n"
        "    print('1/2 [=>..]', end='\\r')\n"
        "    time.sleep(1000)\n"
    )
    chief_end, terminal = pty.openpty()
    import fcntl
    import struct
    import termios

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 91, 0, 0))
    process = ranks.start("launch", "-n", "2", path, stdin=terminal, stdout=terminal, stderr=terminal)
    try:
        assert read_until(chief_end, b"1/2 [=>..]\r").endswith(b"1/2 [=>..]\r")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(120)
        os.close(chief_end)
        os.close(terminal)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=["INT", "TERM", "HUP"]
)
def test_a_signal_ends_all_ranks(ranks, script, number, code):
    path = script("import time; print('up'); time.sleep(1000)")
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    not_ignored = functools.partial(signal.signal, number, signal.SIG_DFL)  # as it is if tests run by `nohup`
    process = ranks.start("launch", "-n", "2", path, preexec_fn=not_ignored, **streams)
    read_until(process.stdout.fileno(), b"[1] up\n")
    process.send_signal(number)
    assert process.wait(120) == code
    process.stdout.close()
    assert ranks.wait_until_gone() == []


def test_a_second_ctrl_c_kills_ranks_that_ignore_the_first(ranks, script):
    path = script(
        "import signal, time\n"
        "for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)\n"
        "print('up'); time.sleep(1000)"
    )
    process = ranks.start("launch", "-n", "2", path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    read_until(process.stdout.fileno(), b"[1] up\n")
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    assert time.monotonic() - start < 4
    process.stdout.close()
    assert ranks.wait_until_gone() == []


def test_no_rank_outlives_a_launcher_that_is_killed(ranks, script):
    path = script("import time; print('up'); time.sleep(1000)")
    process = ranks.start("launch", "-n", "2", path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    read_until(process.stdout.fileno(), b"[1] up\n")
    process.kill()
    process.wait()
    process.stdout.close()
    assert ranks.wait_until_gone() == []
    for folder in Path("/dev/shm").glob(f"easyscale-{process.pid}-*"):  # nobody is left to remove it
        shutil.rmtree(folder)


def test_standard_input_is_the_chiefs(ranks, script):
    path = script(RANK + "print('read', sys.stdin.read()) if rank == 0 else None")
    process = ranks.start("launch", "-n", "2", path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.communicate("text", timeout=120)[0] == "read text\n"


def test_a_reader_that_goes_away_ends_the_job(ranks, script):
    path = script("import time\nfor i in range(100000): print('line', i); time.sleep(0.001)")
    process = ranks.start("launch", "-n", "2", path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    read_until(process.stdout.fileno(), b"line 1\n")
    process.stdout.close()
    assert process.wait(120) == 128 + signal.SIGPIPE
