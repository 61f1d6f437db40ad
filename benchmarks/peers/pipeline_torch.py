"""Trains a transformer with PyTorch, alone or by `torch.distributed.pipelining`. `model_parallel.py` starts it.

    pipeline_torch.py STAGES MICROBATCHES BLOCKS WIDTH LENGTH BATCH STEPS EPOCHS

Each process is kept to one core, and has one thread. The last one prints samples per second, the median of epochs.
"""

import os
import statistics
import sys
import time

stages, microbatches, blocks, width, length, batch, steps, epochs = map(int, sys.argv[1:])
rank = int(os.environ.get("RANK", "0"))
os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.pipelining import PipelineStage, Schedule1F1B  # noqa: E402

torch.set_num_threads(1)
torch.manual_seed(1)
layers = [
    torch.nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
    for _ in range(blocks)
]
model = torch.nn.Sequential(*layers[rank * blocks // stages : (rank + 1) * blocks // stages])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
x = torch.randn(batch * steps, length, width)
loss_function = torch.nn.functional.mse_loss
schedule = None
if stages > 1:
    dist.init_process_group("gloo")
    stage = PipelineStage(model, rank, stages, torch.device("cpu"))
    schedule = Schedule1F1B(stage, microbatches, loss_fn=loss_function)


def step(part):
    optimizer.zero_grad()
    if schedule is None:
        loss_function(model(part), part).backward()
    elif rank == 0:
        schedule.step(part)
    elif rank == stages - 1:
        schedule.step(target=part, losses=[])
    else:
        schedule.step()
    optimizer.step()


seconds = []
for _ in range(1 + epochs):
    start = time.perf_counter()
    for number in range(steps):
        step(x[number * batch : (number + 1) * batch])
    seconds.append(time.perf_counter() - start)
if rank == stages - 1:
    print("rate", len(x) / statistics.median(seconds[1:]), flush=True)
if stages > 1:
    dist.destroy_process_group()
