"""What a user says of layers that are split, and which of them send less so."""

import contextlib
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from easyscale.callbacks import Distribute
from easyscale.layout.sliced import Sliced, bounds_of
from easyscale.parallel import Split
from easyscale.parallel.split.cheapest import cheapest
from easyscale.parallel.split.kinds import kinds_of
from easyscale.parallel.split.kinds.attention import Heads
from easyscale.parallel.split.kinds.matrix_product import MatrixColumns
from easyscale.training.split import refusals
from easyscale.training.split.vocabulary_loss import VocabularyLoss


@pytest.mark.parametrize(
    "layers, message",
    [
        ({}, r"`layers` must say which layers are split, and how\. Received: layers=\{\}"),
        ("fc", r"Received: layers='fc'\. Write such as Split\(\{'fc\.\*': 'columns'\}\), or Split\('auto'\)"),
        ({"fc": "colums"}, r"`way` must be one of \('columns', 'rows'\)|Did you mean 'columns'"),
        ({"*fc": "rows"}, r"must be a regular expression\. Received: '\*fc' \(nothing to repeat"),
        ({3: "rows"}, r"must be a regular expression\. Received: 3 "),
    ],
)
def test_a_wrong_argument_is_one_line(layers, message):
    with pytest.raises(ValueError, match=message) as raised:
        Split(layers)
    assert "\n" not in str(raised.value)


def test_something_else_for_model_parallel_is_one_line():
    with pytest.raises(
        ValueError, match=r"must be an `easyscale\.parallel\.Pipeline`, or `Split`\. Received: model_par"
    ):
        Distribute("ring", model_parallel="split")


def _net():
    """Two nets of one output: a text by a table and a narrow layer, and an image by two wide layers."""
    text, image = keras.Input((20,), dtype="int32", name="text"), keras.Input((64,), name="image")
    table = keras.layers.Embedding(50_000, 32, name="table")(text)
    words = keras.layers.Dense(16, name="words")(table)
    wide = keras.layers.Dense(4096, name="wide")(image)
    wider = keras.layers.Dense(4096, name="wider")(wide)
    both = keras.layers.Concatenate()([keras.layers.Flatten()(words), keras.layers.Dense(32, name="narrow")(wider)])
    return keras.Model([text, image], keras.layers.Dense(10, name="out")(both))


def test_bytes_of_each_layer_are_those_of_its_cheapest_way():
    """8 samples on each of 2 workers; of float32. `wide` needs no gradient by its inputs."""
    offers = {one.kind.layer.name: (one.kind.way, one.sent, one.whole) for one in cheapest(_net(), 8, 2)}
    rows = 8 * 20
    table = 4 * 50_000 * 32 / 2 + rows * (32 * 4 + 8)
    assert offers == {
        "table": ("rows", (4 * rows + 2 * 4 * rows * 32) / 2, table),
        "words": ("rows", 2 * 4 * rows * (32 / 2 + 16), 4 * 33 * 16),
        "wide": ("columns", 4 * 8 * (64 + 2 * 4096 / 2), 4 * 65 * 4096),
        "wider": ("columns", 2 * 4 * 8 * (4096 + 4096 / 2), 4 * 4097 * 4096),
        "narrow": ("rows", 2 * 4 * 8 * (4096 / 2 + 32), 4 * 4097 * 32),
        "out": ("rows", 2 * 4 * 8 * (352 / 2 + 10), 4 * 353 * 10),
    }


@pytest.mark.parametrize(
    "samples, expected",
    [(8, ["narrow", "out", "table", "wide", "wider"]), (128, ["table", "wider"]), (32768, [])],
)
def test_auto_splits_what_sends_less(samples, expected):
    kinds = Split("auto").kinds(_net(), ranks=2, samples=samples)
    assert sorted(kind.layer.name for kind in kinds) == expected


def test_auto_leaves_out_what_cannot_be_split():
    layers = [keras.layers.Dense(512, kernel_regularizer="l2"), keras.layers.Dense(512, trainable=False)]
    layers.append(keras.layers.Dense(512))
    model = keras.Sequential([keras.Input((512,)), *layers])
    assert [kind.layer for kind in Split("auto").kinds(model, ranks=3, samples=1)] == [layers[2]]


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.fc = keras.layers.Dense(8, name="fc")

    def call(self, x):
        return self.fc(x)


def test_auto_of_a_subclassed_model_and_of_data_of_an_unknown_batch_are_one_line():
    model = Subclassed()
    model(np.zeros((1, 8)))
    with pytest.raises(ValueError, match=r"Sequential or Functional model that is built\. Received: Subclassed 'sub"):
        Split("auto").kinds(model, ranks=2, samples=8)
    with pytest.raises(ValueError, match=r"needs to know the samples in a batch\. Received: data that do not tell"):
        Split("auto").kinds(_net(), ranks=2, samples=None)
    (kind,) = Split({"fc": "columns"}).kinds(model, ranks=2, samples=None)
    assert type(kind) is MatrixColumns


def test_indices_that_belong_together_stay_together():
    rank = SimpleNamespace(size=4, rank=3)
    assert Sliced((12, 2), 0, rank, unit=2).part(np.arange(24).reshape(12, 2))[:, 0].tolist() == [16, 18, 20, 22]


def test_slices_differ_by_one_at_most():
    for length in range(40):
        for ranks in range(1, 9):
            bounds = bounds_of(length, ranks)
            widths = {stop - start for start, stop in zip(bounds[:-1], bounds[1:], strict=True)}
            assert bounds[0] == 0 and bounds[-1] == length and max(widths) - min(widths) <= 1


@pytest.mark.parametrize(
    "equation, shape, ways",
    [
        ("abc,cde->abde", (None, 2, 3), ["columns", "rows"]),
        ("abcd,cde->abe", (None, 2), ["columns", "rows"]),
        ("...x,xy->...y", (None, 2), ["columns", "rows"]),
        ("ab,cb->ac", (4,), []),
        ("abc,bd->adc", (2, 5), []),
        ("ab,b->ab", (4,), []),
    ],
)
def test_an_equation_that_is_a_product_of_matrices_can_be_split(equation, shape, ways):
    assert list(kinds_of(keras.layers.EinsumDense(equation, shape))) == ways


class OwnAttention(keras.layers.MultiHeadAttention):
    pass


def _attention(attend=lambda layer, x: layer(x, x), **options):
    x = keras.Input((6, 8))
    layer = keras.layers.MultiHeadAttention(**{"num_heads": 4, "key_dim": 3, "name": "attention", **options})
    return keras.Model(x, attend(layer, x))


@pytest.mark.parametrize(
    "model, layers, message",
    [
        (
            keras.Sequential([keras.Input((8,)), keras.layers.SpectralNormalization(keras.layers.Dense(8, name="fc"))]),
            {"fc": "columns"},
            "no norm of its whole weights. Received: Dense 'fc' in SpectralNormalization. Leave it out",
        ),
        (
            _attention(),
            {".*": "heads", "query": "rows"},
            "must be split once. Received: .* 'attention' by heads, and 'qu",
        ),
        (_attention(), {"attention": "rows"}, "Received: MultiHeadAttention 'attention'. Split it by heads"),
        (_attention(), {"query": "heads"}, "Received: EinsumDense 'query'. Split it by columns"),
        (
            _attention(num_heads=2),
            {"attention": "heads"},
            "Received: MultiHeadAttention 'attention' of 2 heads, 3 ranks",
        ),
        (_attention(activity_regularizer="l2"), {"attention": "heads"}, "'attention' with an `activity_regularizer`"),
        (_attention(kernel_regularizer="l2"), {"attention": "heads"}, "'attention' with a regularizer of `kernel`"),
        (_attention(dtype="mixed_bfloat16"), {"attention": "heads"}, "'attention' of policy 'mixed_bfloat16'"),
        (
            _attention(lambda _, x: keras.layers.MultiHeadAttention(4, 3, name="a")(x[:, None], x[:, None])),
            {"a": "heads"},
            "Received: MultiHeadAttention 'a' with several such axes",
        ),
        (
            _attention(lambda _, x: keras.layers.GroupQueryAttention(3, 4, 2, name="grouped")(x, x)),
            {"grouped": "heads"},
            "Received: GroupedQueryAttention 'grouped' of 2 heads of keys, 3 ranks. Leave it out",
        ),
        (
            _attention(lambda _, x: OwnAttention(4, 3, name="own")(x, x)),
            {"own": "heads"},
            "one of those that can be. Received: OwnAttention 'own'. Leave it out",
        ),
    ],
)
def test_attention_that_cannot_be_split_by_heads_is_one_line(model, layers, message):
    with pytest.raises(ValueError, match=message) as raised:
        Split(layers).kinds(model, ranks=3, samples=8)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"return_attention_scores": True}, "Received: return_attention_scores=True in a call of 'attention'. Leave"),
        ({"attention_mask": np.ones((1, 4, 6, 6))}, r"Received: attention_mask of shape \(1, 4, 6, 6\) in a call of"),
    ],
)
def test_a_call_that_heads_cannot_make_is_one_line(options, message):
    (kind,) = Split({"attention": "heads"}).kinds(_attention(), ranks=2, samples=8)
    x = keras.ops.zeros((2, 6, 8))
    with pytest.raises(ValueError, match=message) as raised:
        kind.call(lambda *_: pytest.fail("nothing travels"), x, x, **options)
    assert "\n" not in str(raised.value)


def test_a_pattern_of_heads_means_attention_and_not_the_layers_in_it():
    kinds = Split({"attention.*": "heads"}).kinds(_attention(), ranks=2, samples=8)
    assert [type(kind) for kind in kinds] == [Heads]
    kinds = Split({"attention.*|query": "rows"}).kinds(_attention(name="a"), ranks=2, samples=8)
    assert sorted(kind.layer.name for kind in kinds) == ["attention_output", "query"]


def _words(last=None, behind=lambda x: x, loss="from logits", kind=keras.Model, **options):
    x = keras.Input((6,))
    hidden = keras.layers.Dense(8, name="hidden")(x)
    last = keras.layers.Dense(20, name="logits") if last is None else last
    model = kind(x, behind(last(hidden)))
    from_logits = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", from_logits if loss == "from logits" else loss, **options)
    return model


def _loss_of(model):
    (kind,) = Split({"logits": "vocabulary"}).kinds(model, ranks=3, samples=8)
    return VocabularyLoss(model, kind)


class OwnStep(keras.Model):
    def train_step(self, data):
        return super().train_step(data)


class OwnLoss(keras.losses.SparseCategoricalCrossentropy):
    pass


@pytest.mark.parametrize(
    "model, message",
    [
        (
            _words(behind=keras.layers.Dense(20)),
            "the only output .* Received: 'logits' that is not, or in another model",
        ),
        (
            _words(behind=keras.layers.Softmax()),
            "Received: 'logits' that is not, or in another model. Split it by colum",
        ),
        (_words(kind=OwnStep), "by Keras's own step. Received: 'logits' of OwnStep, which has its own `train_step`"),
        (_words(loss="mse"), "as its activation is linear. Received: 'logits' with Loss"),
        (_words(loss="categorical_crossentropy"), "Received: 'logits' with LossFunctionWrapper 'categorical_cross"),
        (_words(loss=OwnLoss(from_logits=True)), "Received: 'logits' with OwnLoss 'sparse_categorical"),
        (_words(loss="sparse_categorical_crossentropy"), "Received: 'logits' with from_logits=False. Compile"),
        (
            _words(keras.layers.Dense(20, "softmax", name="logits")),
            "with `from_logits=False`, as its activation is softmax. Received: 'logits' with from_logits=True",
        ),
        (
            _words(metrics=["accuracy", "sparse_top_k_categorical_accuracy"]),
            "Received: 'logits' with SparseTopKCategoricalAccuracy 'sparse_top",
        ),
        (
            _words(weighted_metrics=[keras.metrics.SparseCategoricalCrossentropy()]),
            "with SparseCategoricalCrossentropy",
        ),
    ],
)
def test_logits_that_something_needs_whole_are_one_line(model, message):
    with pytest.raises(ValueError, match=message) as raised:
        _loss_of(model)
    assert "\n" not in str(raised.value)


def test_a_layer_of_another_activation_is_not_split_by_vocabulary():
    model = _words(keras.layers.Dense(20, "relu", name="logits"))
    with pytest.raises(
        ValueError, match="by vocabulary must be one of those that can be. Received: Dense 'logits'. Split"
    ):
        Split({"logits": "vocabulary"}).kinds(model, ranks=3, samples=8)


def test_an_activity_regularizer_of_logits_is_one_line():
    model = _words(keras.layers.Dense(20, name="logits", activity_regularizer="l2"))
    with pytest.raises(
        ValueError, match="Received: Dense 'logits' with an `activity_regularizer`. Split it by columns"
    ):
        Split({"logits": "vocabulary"}).kinds(model, ranks=3, samples=8)


def test_a_loss_of_slices_takes_no_other_tensor_and_ends_as_it_was():
    model = _words(metrics=["accuracy"])
    loss = _loss_of(model)
    y, logits = np.array([1, 2]), np.zeros((2, 20), "float32")
    before = float(model.loss(y, logits))
    loss.begin()
    with pytest.raises(ValueError, match="must be of its output. Received: another tensor for 'logits'"):
        model.loss(y, logits)
    loss.end()
    assert float(model.loss(y, logits)) == before == pytest.approx(np.log(20))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_numbers_of_slices_make_the_cross_entropy_of_whole_logits(ranks):
    """Labels beside the vocabulary have none; of equal logits the first counts.

    All numbers are of a few bits, so that logits are exact on any processor, and equal columns give equal ones.
    """
    model, generator = _words(), np.random.default_rng(0)
    layer = model.get_layer("logits")
    kernel = np.round(keras.ops.convert_to_numpy(layer.kernel) * 64) / 64
    kernel[:, 3] = kernel[:, 17]
    layer.kernel.assign(kernel)
    (kind,) = Split({"logits": "vocabulary"}).kinds(model, ranks=3, samples=8)
    x = np.round(generator.normal(size=(9, 8)) * 16).astype("float32") / 16
    labels = np.array([0, 1, 6, 7, 13, 17, 19, 20, -1], "int32")
    bounds = bounds_of(20, ranks)

    def passage(tensors):
        results = []
        for start, stop in zip(bounds[:-1], bounds[1:], strict=True):
            part = SimpleNamespace(kernel=layer.kernel[:, start:stop], bias=layer.bias[start:stop], name="logits")
            kind.layer = part
            results.append(kind.compute(tensors, 0, range(start, stop)))
        kind.layer = layer
        return keras.ops.concatenate(results, axis=-1)

    losses, best = kind.losses(keras.ops.convert_to_tensor(labels), kind.call(passage, keras.ops.convert_to_tensor(x)))
    logits = x @ kernel + keras.ops.convert_to_numpy(layer.bias)
    expected = keras.losses.sparse_categorical_crossentropy(labels[:7], logits[:7], from_logits=True)
    np.testing.assert_allclose(losses[:7], expected, rtol=1e-5)
    assert np.isnan(losses[7:]).all()
    np.testing.assert_array_equal(best, logits.argmax(axis=1))


def test_auto_counts_each_input_of_attention_once():
    """8 samples on each of 2 workers, of 6 positions of 8 numbers, which are data."""
    (offer,) = cheapest(_attention(), 8, 2)
    weights = 4 * (3 * (8 * 12 + 12) + 12 * 8 + 8)
    assert (offer.kind.way, offer.sent, offer.whole) == ("heads", 4 * 8 * 6 * (8 + 2 * 8), weights)
    (offer,) = cheapest(_attention(lambda layer, x: layer(x, keras.ops.tanh(x))), 8, 2)
    assert offer.sent == 4 * 8 * 6 * (2 * 8 + 2 * 8)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({}, None),
        ({"is_synchronous": False}, r"must wait for each other\. Received: exchange='ring'\. Use"),
        ({"servers": 2}, r"ranks that all train\. Received: 2 servers\. Start the job without `--servers`"),
        ({"is_elastic": True}, r"need all of their workers\. Received: an elastic job\. Start it without `--elastic`"),
        ({"count": 2}, r"has one optimizer\. Received: 2\. Train it without `model_parallel`"),
    ],
)
def test_a_job_in_which_layers_cannot_be_split_is_one_line(changes, message):
    options = {"is_synchronous": True, "servers": 0, "is_elastic": False, "count": 1, **changes}
    membership = SimpleNamespace(is_elastic=options["is_elastic"])
    gradients = SimpleNamespace(exchange=SimpleNamespace(name="ring"))
    communicator = SimpleNamespace(servers=options["servers"], membership=membership)
    workers = SimpleNamespace(communicator=communicator, gradients=gradients)
    optimizer = SimpleNamespace(is_synchronous=options["is_synchronous"], workers=workers)
    with contextlib.nullcontext() if message is None else pytest.raises(ValueError, match=message):
        refusals.check_job([optimizer] * options["count"])


def test_resume_is_refused(monkeypatch):
    monkeypatch.setenv("EASYSCALE_RESUME", "folder")
    with pytest.raises(
        ValueError, match=r"writes no checkpoints of its own yet\. Received: `checkpoint`, or `--resume`"
    ):
        Distribute("ring", model_parallel=Split("auto"))
