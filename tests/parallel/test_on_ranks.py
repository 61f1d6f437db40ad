"""The checks of this folder, each on real processes.

What costs most, several ranks that train as one of them does, runs in part: the others are marked `full`.
"""

from pathlib import Path

from launches import over_ranks

HERE = Path(__file__).parent


@over_ranks(
    HERE / "pipeline_on_ranks.py",
    sizes=[3],
    full=[2, 4],
    only=["sgd_of_two_inputs_and_two_outputs"],
    limit=900,
)
def test_a_pipeline_takes_the_steps_of_one_process(check):
    check()


@over_ranks(HERE / "pipelined_fit_on_ranks.py", sizes=[2], full=[3], limit=400)
def test_a_fit_by_a_pipeline(check):
    check()


@over_ranks(HERE / "scope_on_ranks.py", sizes=[2], full=[3, 4], limit=400)
def test_a_model_built_in_the_scope_of_a_pipeline(check):
    check()


@over_ranks(HERE / "averages_on_ranks.py", sizes=[], full=[2, 3, 4], limit=400)
def test_averages_of_weights_in_a_pipeline(check):
    check()


@over_ranks(HERE / "scope_checkpoints_on_ranks.py", sizes=[2], full=[3, 4], limit=600)
def test_checkpoints_of_a_model_built_in_the_scope_of_a_pipeline(check):
    check()


@over_ranks(HERE / "split_on_ranks.py", sizes=[2], full=[3, 4], limit=900)
def test_split_layers_take_the_steps_of_one_process(check):
    check()


@over_ranks(HERE / "split_fit_on_ranks.py", sizes=[2], full=[3], limit=400)
def test_a_fit_with_split_layers(check):
    check()


@over_ranks(HERE / "attention_on_ranks.py", sizes=[2], full=[3, 4], limit=600)
def test_attention_that_is_split_by_heads(check):
    check()


@over_ranks(HERE / "vocabulary_on_ranks.py", sizes=[2], full=[3, 4], limit=600)
def test_a_last_layer_that_is_split_by_vocabulary(check):
    check()


@over_ranks(HERE / "checkpoints_on_ranks.py", sizes=[2], full=[4], limit=600)
def test_checkpoints_of_pipelines(check):
    check()


@over_ranks(HERE / "hybrid_on_ranks.py", sizes=[4], only=["masks_and_weights_that_losses_are_divided_by"], limit=900)
def test_pipelines_side_by_side_take_the_steps_of_one_process(check):
    check()


@over_ranks(
    HERE / "group_on_ranks.py",
    sizes=[2],
    full=[3, 4],
    only=["dense_layers_by_columns_and_by_rows"],
    limit=900,
)
def test_layers_that_are_split_within_groups_take_the_steps_of_one_process(check):
    check()


@over_ranks(HERE / "group_fit_on_ranks.py", sizes=[2], full=[3, 4], limit=600)
def test_a_fit_with_layers_that_are_split_within_groups(check):
    check()


@over_ranks(HERE / "split_stages_on_ranks.py", sizes=[4], full=[8], limit=900)
def test_pipelines_whose_stages_are_split_take_the_steps_of_one_process(check):
    check()
