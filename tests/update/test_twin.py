"""An optimizer that counts steps by the variables of another keeps track of its own."""

import keras

from easyscale.update.twin import share_progress


def test_a_variable_that_was_replaced_is_none_of_the_optimizers_any_more():
    """Keras takes a later variable for one that it knows if it has the identity of one that is gone."""
    original, other = keras.optimizers.SGD(), keras.optimizers.SGD()
    replaced = other.iterations
    share_progress(original, other)
    assert not any(variable is replaced for variable in other.variables)
    other.slots = [replaced]  # stands for a variable that comes later, and has its identity
    assert any(variable is replaced for variable in other.variables)
