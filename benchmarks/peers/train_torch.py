"""Trains with PyTorch, by itself or under DistributedDataParallel with Gloo."""

import sys
import time

import torch
import torch.distributed as dist
from resnet_torch import resnet50
from torch.nn.parallel import DistributedDataParallel
from turns import serve
from workloads import CLASSES, WORKLOADS, steps_of

workload = WORKLOADS[sys.argv[1]]
torch.set_num_threads(1)
dist.init_process_group("gloo")


def build():
    if workload.model == "mlp":
        widths = [784, 4096, 4096, 1024]
        layers = []
        for before, after in zip(widths[:-1], widths[1:], strict=True):
            layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
        return torch.nn.Sequential(*layers, torch.nn.Linear(1024, CLASSES))
    return resnet50(CLASSES)


def optimizer_of(model):
    # "fused" is the fastest that PyTorch has on a CPU.
    if workload.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), fused=True)
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)


models = {False: build(), True: DistributedDataParallel(build(), gradient_as_bucket_view=True)}
optimizers = {together: optimizer_of(model) for together, model in models.items()}
loss_function = torch.nn.CrossEntropyLoss()
shape = workload.shape if workload.model == "mlp" else (3, 64, 64)
x = torch.randn(workload.samples, *shape)
y = torch.randint(0, CLASSES, (workload.samples,))


def work(together, clock="perf_counter"):
    now = getattr(time, clock)
    model, optimizer = models[together], optimizers[together]
    ends = []
    for start in range(0, workload.samples, workload.batch):
        optimizer.zero_grad()
        loss_function(model(x[start : start + workload.batch]), y[start : start + workload.batch]).backward()
        optimizer.step()
        ends.append(now())
    return steps_of(ends)


serve(work)
