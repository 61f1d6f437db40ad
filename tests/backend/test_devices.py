"""The exchanges between devices, as operations of a graph: what they sum up to, and what crosses between devices."""

import numpy as np
import pytest
import tensorflow as tf

from easyscale import exchange
from easyscale.backend.tensorflow.in_graph import devices
from easyscale.backend.tensorflow.in_graph.strategy import exchange_for

NAMES = [name for name in devices.available() if not devices.get(name).only_on_gpus]


def _names(count):
    return [f"/device:CPU:{number}" for number in range(count)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("length", [1, 7, 64])
def test_every_device_gets_the_sum(name, count, length):
    made = devices.get(name)(_names(count))

    @tf.function
    def allreduce(vectors):
        return made.allreduce(vectors), made.sum(vectors)

    vectors = [tf.range(length, dtype=tf.float64) + number for number in range(count)]
    everywhere, on_first = allreduce(vectors)  # on the devices that there are
    expected = count * np.arange(length) + count * (count - 1) / 2
    assert len(everywhere) == count
    for total in [*everywhere, on_first]:
        np.testing.assert_array_equal(total, expected)


def _crossings(function, vectors):
    """Return what leaves each device when `function` is called, in bytes, and the longest row of such transfers."""
    sent, depth, seen = {}, {}, set()
    with tf.Graph().as_default() as graph:
        inputs = []
        for device, length in vectors:
            with tf.device(device):
                inputs.append(tf.zeros(length))
        function(inputs)
        for operation in graph.get_operations():
            depth[operation.name] = 0
            for tensor in operation.inputs:
                crosses = bool(tensor.op.device and operation.device and tensor.op.device != operation.device)
                depth[operation.name] = max(depth[operation.name], depth[tensor.op.name] + crosses)
                if crosses and (tensor.name, operation.device) not in seen:
                    seen.add((tensor.name, operation.device))
                    sent.setdefault(tensor.op.device, []).append(4 * tensor.shape.num_elements())
    return sent, max(depth.values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [2, 3, 4, 6, 8])
def test_what_crosses_between_devices_is_what_is_promised(name, count):
    made, length = devices.get(name)(_names(count)), 240
    sent, steps = _crossings(made.allreduce, [(device, length) for device in _names(count)])
    cost = made.cost(count, 4 * length)
    assert max(sum(messages) for messages in sent.values()) == cost.bytes
    assert max(len(messages) for messages in sent.values()) == cost.messages
    if name != "tree" or count in (2, 4, 8):  # else some messages of the tree need not wait for others
        assert steps == cost.steps


def test_a_server_device_owns_everything():
    made = devices.get("parameter_server")(_names(3), exchange.ParameterServer(servers_device="/device:CPU:7"))
    sent, steps = _crossings(made.allreduce, [(device, 12) for device in _names(3)])
    assert sent == {device: [48] for device in _names(3)} | {"/device:CPU:7": [48] * 3}
    assert steps == 2


def test_available_devices_exchanges_are_the_files_of_the_folder():
    assert {"nccl", "parameter_server", "ring", "tree"} <= set(devices.available())
    assert devices.get("mpi") is None


def test_an_exchange_without_a_form_in_the_graph_is_refused():
    with pytest.raises(ValueError, match=r"must be one of \['auto', 'nccl', .*\] between the devices of one process"):
        exchange_for("mpi", _names(2), strict=True)
    assert isinstance(exchange_for("mpi", _names(2)), devices.get("parameter_server"))


def test_nccl_is_refused_without_gpus():
    with pytest.raises(ValueError, match="the exchange 'nccl' is for GPUs. Received: /device:CPU:0, /device:CPU:1"):
        exchange_for("nccl", _names(2))


def test_gpus_exchange_by_nccl_unless_something_else_is_said():
    gpus = ["/GPU:0", "/GPU:1"]
    assert isinstance(exchange_for(None, gpus), devices.get("nccl"))
    assert isinstance(exchange_for("ring", gpus), devices.get("ring"))
    with tf.Graph().as_default() as graph:
        exchange_for("nccl", gpus).allreduce([tf.zeros(3), tf.zeros(3)])
        calls = [one for one in graph.get_operations() if one.type == "NcclAllReduce"]
    assert [one.get_attr("num_devices") for one in calls] == [2, 2]
    assert len({one.get_attr("shared_name") for one in calls}) == 1
