"""Trains a model whose step takes a millisecond, with PyTorch or its DDP. `small_steps.py` starts it."""

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from turns import serve
from workloads import SMALL, SMALL_BATCH, SMALL_STEPS

torch.set_num_threads(1)
layers = []
for before, after in zip(SMALL[:-1], SMALL[1:], strict=True):
    layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
model = torch.nn.Sequential(*layers[:-1])
if sys.argv[1] == "ddp":
    dist.init_process_group("gloo")
    model = DistributedDataParallel(model, gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
loss_function = torch.nn.CrossEntropyLoss()
x = torch.randn(SMALL_BATCH * SMALL_STEPS, SMALL[0])
y = torch.randint(0, SMALL[-1], (len(x),))
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=SMALL_BATCH)


def work(way, epochs):
    taken = []
    for _ in range(1 + epochs):
        wall, processor = time.perf_counter(), time.process_time()
        for inputs, labels in data:
            optimizer.zero_grad()
            loss_function(model(inputs), labels).backward()
            optimizer.step()
        taken.append((time.perf_counter() - wall, time.process_time() - processor))
    return [seconds / SMALL_STEPS for epoch in taken[1:] for seconds in epoch]


serve(work)
