"""Trains digits with PyTorch's DDP and one of its communication hooks. `slow_networks.py` starts it on each host.

slow_torch.py '{"way": "power_sgd", "steps": 40, "width": 2048, "seed": 0}'
"""

import json
import os
import sys
import time
from pathlib import Path

rank = int(os.environ["RANK"])
cores = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {cores[rank % len(cores)]})
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from mlp_of_digits import RATE, answer, batches, digits, start  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

order = json.loads(sys.argv[1])
torch.set_num_threads(1)
dist.init_process_group("gloo")
weights = start(order["width"], order["seed"])
layers = []
for kernel in weights:
    layer = torch.nn.Linear(*kernel.shape)
    layer.weight.data, layer.bias.data = torch.tensor(kernel.T.copy()), torch.zeros(kernel.shape[1])
    layers += [layer, torch.nn.ReLU()]
# With several buckets the PowerSGD hook waits in callbacks for other sums, and Gloo's two threads for each other.
buckets = {"bucket_cap_mb": 1024} if order["way"] == "power_sgd" else {}
model = DistributedDataParallel(torch.nn.Sequential(*layers[:-1]), gradient_as_bucket_view=True, **buckets)
if order["way"] == "fp16":
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
elif order["way"] == "power_sgd":
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, fused=True)
loss_function = torch.nn.CrossEntropyLoss()
ends = []
for inputs, labels in zip(*map(torch.tensor, batches(order["steps"], order["seed"], rank)), strict=True):
    optimizer.zero_grad()
    loss_function(model(inputs), labels.long()).backward()
    optimizer.step()
    ends.append(time.perf_counter())
x, y = map(torch.tensor, digits())
with torch.no_grad():
    loss = loss_function(model.module(x), y.long())
if rank == 0:
    print(answer(ends, float(loss)), flush=True)
dist.destroy_process_group()
