"""All forward passes, then all backward passes."""

from collections.abc import Iterator

from easyscale.parallel.pipeline.schedules.schedule import Action, Kind, Schedule, register

__all__ = ["GPipe"]


@register("gpipe")
class GPipe(Schedule):
    """Send every micro-batch forward through all stages, then every one back, the last one first.

        stage 0   0  1  2  3  .  .  .  .  .  .  3' 3' 2' 2' 1' 1' 0' 0'
        stage 1   .  0  1  2  3  .  .  .  3' 3' 2' 2' 1' 1' 0' 0' .  .
        stage 2   .  .  0  1  2  3  3' 3' 2' 2' 1' 1' 0' 0' .  .  .  .

        0  a forward pass of micro-batch 0       0' 0'  its backward pass, which takes twice as long

    With `S` stages and `M` micro-batches a stage waits for `(S - 1) / (M + S - 1)` of a step, and keeps the
    activations of all `M` micro-batches. It sends `M` times the tensors that cross its cut, each way.

    Reference: Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism", 2019.
    """

    def order(self, stage: int, stages: int, microbatches: int) -> Iterator[Action]:
        for number in range(microbatches):
            yield Action(Kind.RECEIVE_FORWARD, number)
            yield Action(Kind.FORWARD, number)
            yield Action(Kind.SEND_FORWARD, number)
        for number in reversed(range(microbatches)):
            yield Action(Kind.RECEIVE_BACKWARD, number)
            yield Action(Kind.BACKWARD, number)
            yield Action(Kind.SEND_BACKWARD, number)

    def alive(self, stage: int, stages: int, microbatches: int) -> int:
        return microbatches
