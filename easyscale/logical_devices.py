"""Logical CPU devices of a process that drives several devices, created as soon as TensorFlow is imported.

TensorFlow can create them only before it computes anything. A script may compute before it enters `scope()`, which
needs them. So they are created when the script imports TensorFlow, if the launcher has set their number. No heavy
imports: `import easyscale` loads this module.
"""

import contextlib
import os
import sys
from typing import Any

from easyscale import launchers
from easyscale.errors import tell
from easyscale.settings import Devices, Settings
from easyscale.when_imported import when_imported

__all__ = ["make", "watch"]


def watch() -> None:
    """Create this process's devices, if it drives several, after TensorFlow, or Keras with it, has been imported."""
    try:
        said = Settings.read(os.environ, ["replication", "devices", "launched", "rank_process"])
    except ValueError:  # reported where the variable is used
        return
    is_child = any(process not in (None, os.getpid()) for process in (said.launched, said.rank_process))
    devices = said.devices
    if said.replication == "in_graph" and devices is not None and devices.count > 1 and not is_child:
        when_imported("tensorflow", lambda: _make_early(devices), through=["keras"])


def make(count: int, is_said: bool) -> None:
    """Create `count` logical CPU devices, unless they exist.

    Args:
        count: Int. The number of devices.
        is_said: Bool. Whether to report it in a line on stderr.

    Raises:
        RuntimeError: If TensorFlow has already computed something.
    """
    config = _tensorflow().config
    cpu = config.list_physical_devices("CPU")[0]
    made = config.get_logical_device_configuration(cpu)
    if count > 1 and (made is None or len(made) < count):
        config.set_logical_device_configuration(cpu, [config.LogicalDeviceConfiguration()] * count)
        if is_said:
            text = f"EasyScale: {count} logical CPU devices in each process: there are {_gpus()} GPUs."
            tell(text)


def _make_early(devices: Devices) -> None:
    launcher = launchers.detect()
    local_rank = (launcher and launcher.local_rank) or 0
    if not _are_gpus(devices, local_rank):
        with contextlib.suppress(RuntimeError):  # `scope()` reports it
            make(devices.count, is_said=launcher is None or launcher.rank == 0)


def _are_gpus(devices: Devices, local_rank: int) -> bool:
    """Return whether the devices of a rank are GPUs: they are required to be, or there are enough of them."""
    return devices.kind == "gpu" or (devices.kind != "cpu" and _gpus() >= (local_rank + 1) * devices.count)


def _gpus() -> int:
    return len(_tensorflow().config.list_physical_devices("GPU"))


def _tensorflow() -> Any:
    return sys.modules["tensorflow"]
