"""Models for tests of pipelines."""

import keras

layers = keras.layers


def dense_net(widths=(32, 24, 16, 10), inputs=12, **options):
    """Dense layers `dense_0`, `dense_1`, ..., with an activation of its own behind each but the last."""
    made = [keras.Input((inputs,))]
    for number, width in enumerate(widths):
        made.append(layers.Dense(width, name=f"dense_{number}", **options))
        if number < len(widths) - 1:
            made.append(layers.Activation("tanh", name=f"tanh_{number}"))
    return keras.Sequential(made)


def u_net(size=8):
    """Two levels down and up: `down_1` and `down_2` go to `up_1` and `up_2` past all that is between."""
    image = keras.Input((size, size, 1), name="image")
    down_1 = layers.Conv2D(4, 3, padding="same", activation="tanh", name="down_1")(image)
    x = layers.MaxPooling2D(name="pool_1")(down_1)
    down_2 = layers.Conv2D(6, 3, padding="same", activation="tanh", name="down_2")(x)
    x = layers.MaxPooling2D(name="pool_2")(down_2)
    x = layers.Conv2D(8, 3, padding="same", activation="tanh", name="bottom")(x)
    x = layers.Concatenate(name="join_2")([layers.UpSampling2D(name="larger_2")(x), down_2])
    x = layers.Conv2D(6, 3, padding="same", activation="tanh", name="up_2")(x)
    x = layers.Concatenate(name="join_1")([layers.UpSampling2D(name="larger_1")(x), down_1])
    x = layers.Conv2D(4, 3, padding="same", activation="tanh", name="up_1")(x)
    return keras.Model(image, layers.Conv2D(1, 1, name="mask")(x))


def two_by_two():
    """Two inputs, of which the second comes in late, and two outputs, of which the first goes out early."""
    a, b = keras.Input((6,), name="a"), keras.Input((3,), name="b")
    x = layers.Dense(16, activation="tanh", name="first")(a)
    early = layers.Dense(2, name="early")(x)
    x = layers.Dense(12, activation="tanh", name="second")(x)
    x = layers.Concatenate(name="both")([x, b])
    x = layers.Dense(8, activation="tanh", name="third")(x)
    return keras.Model({"a": a, "b": b}, {"early": early, "late": layers.Dense(4, name="late")(x)})


def shared_layer():
    """One layer that is called twice, with others between."""
    inputs = keras.Input((8,))
    shared = layers.Dense(8, activation="tanh", name="shared")
    x = layers.Dense(8, activation="tanh", name="between")(shared(inputs))
    return keras.Model(inputs, layers.Dense(2, name="last")(shared(x)))


def normalized():
    """Convolutions with batch normalization."""
    x = image = keras.Input((8, 8, 1))
    for number, filters in enumerate((4, 6, 8)):
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False, name=f"convolution_{number}")(x)
        x = layers.Activation("tanh")(layers.BatchNormalization(momentum=0.8, name=f"normal_{number}")(x))
    return keras.Model(image, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


@keras.saving.register_keras_serializable("tests")
class AddsLoss(layers.Layer):
    """Adds a mean over samples to the loss."""

    def call(self, inputs):
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(inputs)))
        return inputs


def losses_of_layers():
    """Layers that add to the loss, on each of three stages: by their weights, what they put out, and by themselves."""
    x = inputs = keras.Input((12,))
    adds = AddsLoss()
    for number, options in enumerate(
        (
            {"kernel_regularizer": "l2", "activity_regularizer": "l1"},
            {"bias_regularizer": keras.regularizers.L1L2(0.01, 0.02)},
            {"kernel_regularizer": keras.regularizers.OrthogonalRegularizer(0.01)},
            {"activity_regularizer": "l2"},
        )
    ):
        x = adds(layers.Dense(16, activation="tanh", name=f"dense_{number}", **options)(x))
    return keras.Model(inputs, layers.Dense(10, kernel_regularizer="l2", name="last")(x))


@keras.saving.register_keras_serializable("tests")
class Unembedding(layers.Layer):
    """Logits by the matrix of an embedding, which is this layer's own as well."""

    def __init__(self, embedding, **options):
        super().__init__(**options)
        self.embedding = embedding

    def call(self, inputs):
        return inputs @ keras.ops.transpose(self.embedding.embeddings)


def tied(words=20, width=8):
    """A small transformer whose last layer has the first one's matrix."""
    inputs = keras.Input((6,), dtype="int32")
    embedding = layers.Embedding(words, width, name="words")
    x = embedding(inputs)
    for number in range(2):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(2, 4, name=f"attention_{number}")(y, y)
        x = x + layers.Dense(width)(layers.Dense(16, activation="gelu")(layers.LayerNormalization()(x)))
    x = layers.LayerNormalization(name="normal")(x)
    return keras.Model(inputs, Unembedding(embedding, name="logits")(x))
