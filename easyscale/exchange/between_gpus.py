"""Choice of the exchange for "auto" if tensors are on GPUs."""

import warnings

from easyscale.errors import EasyScaleWarning
from easyscale.exchange.cuda_ipc import CudaIpc
from easyscale.exchange.exchange import Exchange
from easyscale.exchange.nccl import Nccl
from easyscale.exchange.on_gpus import for_gpus
from easyscale.exchange.registry import get
from easyscale.gpus.cuda import Cuda
from easyscale.gpus.memory import GpuMemory
from easyscale.gpus.ranks import gpus_of

__all__ = ["between_gpus"]


def between_gpus(usual: Exchange, memory: GpuMemory | None = None) -> Exchange:
    """Return the exchange between ranks whose tensors are on GPUs. Collective: all ranks must call this.

    That is `nccl` if each rank has its own GPU, `cuda_ipc` if ranks of one node share GPUs or have no NCCL.

    Args:
        usual: The connected `Exchange` that goes through the CPU's memory. It is returned if neither works.
        memory: `GpuMemory`. Defaults to `None`: that of NVIDIA's GPUs.
    """
    communicator, memory = usual.communicator, Cuda() if memory is None else memory
    if communicator.size == 1 or communicator.servers or communicator.membership.is_elastic:
        return usual
    if any(communicator.all_gather_object(memory.why_not())):
        return usual
    has_own = all(len(ranks) == 1 for ranks in gpus_of(communicator, memory).values())
    has_library = not any(communicator.all_gather_object(memory.why_no_library()))
    if not (has_own and has_library) and len(communicator.nodes) > 1:
        return usual
    problem, chosen = None, get(Nccl(memory) if has_own and has_library else CudaIpc(memory), communicator)
    try:
        for_gpus(chosen).lend(1)  # fails now if it cannot work
    except ValueError as error:
        problem = str(error)
    problems = list(filter(None, communicator.all_gather_object(problem)))
    if problems and communicator.is_chief:
        warnings.warn(f"the exchange '{usual.name}' is used: {problems[0]}", EasyScaleWarning, stacklevel=2)
    return usual if problems else chosen
