# %% [markdown]
# # On a cluster: Slurm, Kubernetes, Ray
#
# One training, here and on three kinds of clusters. What changes is who starts the processes and says where: the
# training itself stays as it is. The part with Ray runs here as well, on a Ray of this machine.

# %%
import json
import subprocess
import sys

import keras
import matplotlib.pyplot as plt
import ray
from sklearn.datasets import load_digits

import easyscale

digits = load_digits()
x = digits.data[:1440].astype("float32") / 16
y = digits.target[:1440]

# %% [markdown]
# ## First: how many nodes?
#
# More nodes are no help if they wait for each other. `easyscale plan` works out, before anybody has asked for a node,
# how much faster so many ranks are. Here for a ResNet50 on nodes of four ranks each, with the link that a cluster has
# (10 Gbit/s), and with an office's (1 Gbit/s):


# %%
def speedups(bandwidth):
    options = ["--model", "resnet50", "--ranks", "4,8,16,32,64", "--ranks-per-node", "4", "--bandwidth", bandwidth]
    options += ["--exchanges", "hierarchical", "--json", "plan.json"]
    subprocess.run([sys.executable, "-m", "easyscale", "plan", *options], check=True, capture_output=True)
    with open("plan.json") as file:
        return {step["ranks"]: step["speedup"] for step in json.load(file)["steps"]}


found = {bandwidth: speedups(bandwidth) for bandwidth in ("10Gbit", "1Gbit")}
for bandwidth, steps in found.items():
    print(f"{bandwidth}: " + ", ".join(f"{ranks} ranks {speedup:.1f}" for ranks, speedup in steps.items()))

# %% [markdown]
# ```output
# 10Gbit: 4 ranks 3.8, 8 ranks 5.9, 16 ranks 10.7, 32 ranks 20.4, 64 ranks 39.7
# 1Gbit: 4 ranks 3.8, 8 ranks 1.3, 16 ranks 1.8, 32 ranks 3.2, 64 ranks 5.9
# ```
#
# With the slow link a second node makes the training slower: then stay on one, or send less
# ([two cities](two_cities.py)).

# %%
figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
for (bandwidth, steps), color in zip(found.items(), ("#3f51b5", "#b3541e"), strict=True):
    axes.plot(steps.keys(), steps.values(), "o-", color=color, linewidth=2, label=bandwidth.replace("G", " G") + "/s")
axes.plot([4, 64], [4, 64], color="#999999", linestyle=":", label="as many times as ranks")
axes.set(xscale="log", yscale="log", xlabel="ranks, 4 on a node", ylabel="times as fast as one")
axes.set_xticks([4, 8, 16, 32, 64], ["4", "8", "16", "32", "64"])
axes.set_yticks([1, 4, 16, 64], ["1", "4", "16", "64"])
axes.minorticks_off()
axes.legend()
figure.savefig("on_a_cluster.svg")

# %% [markdown]
# ## The training
#
# It has the three lines, and nothing that names a host. On a cluster give `Distribute` a folder for checkpoints that
# all nodes see, `checkpoint="/shared/run"`: time limits and lost nodes are usual there.


# %%
def train(epochs):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss)
    own_x, own_y = easyscale.shard(x, y)
    callbacks = [easyscale.callbacks.Distribute("ring")]
    batch = easyscale.local_batch(240)
    history = model.fit(own_x, own_y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
    return easyscale.size(), history.history["loss"][-1]


workers, loss = easyscale.run(train, 8, n=2)
print(f"here: {workers} workers, loss {loss:.3f}")

# %% [markdown]
# ```output
# here: 2 workers, loss 1.077
# ```
#
# ## Slurm
#
# A batch script says how many tasks, and `easyscale launch` needs no `-n` and no `--hosts`: it finds the nodes of the
# job and the tasks on each, and starts them by `srun`, without ssh.
#
# ```bash
# #!/bin/bash
# #SBATCH --nodes=2 --ntasks-per-node=4 --time=04:00:00
# #SBATCH --signal=B:TERM@120 --requeue
# easyscale launch train.py
# ```
#
# 120 seconds before its time is over the training writes a checkpoint, and ends with exit code 75.
# `examples/slurm.sbatch` has the lines that pass the signal on and have the job queued again.
#
# ## Kubernetes
#
# An MPIJob of Kubeflow has a launcher pod and worker pods; its operator writes down the workers' names, and
# `easyscale launch` finds that file. `examples/kubernetes` has an image and manifests.
#
# ```text
# docker build -f examples/kubernetes/Dockerfile -t registry.example/train . && docker push registry.example/train
# kubectl apply -f examples/kubernetes/mpijob.yaml
# ```
#
# ## Ray
#
# In a cluster of Ray the training is a function. Ray says on which nodes there is room; an actor on each starts the
# workers, and they exchange gradients by MPI. `ray.init()` without an address makes a Ray of this machine.

# %%
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
workers, loss = easyscale.integrations.ray.run(train, 8, n=2)
print(f"Ray: {workers} workers, loss {loss:.3f}")

# %% [markdown]
# ```output
# Ray: 2 workers, loss 1.077
# ```
#
# ## Where to go
#
# - [Clusters](../../docs/clusters.md): what was tried with which versions, and what each needs.
# - `easyscale doctor --hosts a,b` looks whether hosts have the same versions, and measures the links between them.
# - A node is lost: [When a worker dies](worker_dies.py).
