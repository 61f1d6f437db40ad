"""`easyscale.run` in a notebook's kernel: interrupted, it goes on without workers; restarted, it leaves none."""

import time

import pytest
from jupyter_client.manager import start_new_kernel
from processes import Marked

CELL = """
import time
import easyscale

def work():
    print("works", flush=True)
    time.sleep(1000)

easyscale.run(work, n=2)
"""


@pytest.fixture
def kernel():
    """A kernel's manager and client, and what finds all processes that came of it."""
    marked = Marked()
    manager, client = start_new_kernel(env=marked.environment)
    yield manager, client, marked
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def _wait_for(client, text):
    end = time.monotonic() + 120
    while time.monotonic() < end:
        message = client.get_iopub_msg(timeout=40)
        if message["msg_type"] == "stream" and text in message["content"]["text"]:
            return
    pytest.fail(f"no {text!r}")


def _reply_to(client, request):
    while (message := client.get_shell_msg(timeout=40))["parent_header"].get("msg_id") != request:
        pass  # an answer to what was asked before
    return message["content"]


def _only_the_kernel_is_left(marked):
    end = time.monotonic() + 120
    while len(marked.alive()) > 1 and time.monotonic() < end:
        time.sleep(0.05)
    return [line for line in marked.alive() if "ipykernel" not in line] == []


def test_workers_end_when_the_kernel_is_interrupted_and_when_it_is_restarted(kernel):
    manager, client, marked = kernel
    request = client.execute(CELL)
    _wait_for(client, "works")
    manager.interrupt_kernel()
    assert _reply_to(client, request).get("ename") == "KeyboardInterrupt"
    assert _only_the_kernel_is_left(marked)
    client.execute(CELL)
    _wait_for(client, "works")
    manager.restart_kernel(now=True)
    assert _only_the_kernel_is_left(marked)
