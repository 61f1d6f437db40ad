"""One forward pass and one backward pass, alternating."""

from collections.abc import Iterator

from easyscale.parallel.pipeline.schedules.schedule import Action, Kind, Schedule, register

__all__ = ["OneForwardOneBackward"]


@register("1f1b")
class OneForwardOneBackward(Schedule):
    """Begin with as many forward passes as there are later stages, then alternate backward and forward passes.

        stage 0   0  1  2  .  .  .  .  0' 0' 3  1' 1' .  2' 2' .  3' 3'
        stage 1   .  0  1  .  .  0' 0' 2  1' 1' 3  2' 2' .  3' 3' .  .
        stage 2   .  .  0  0' 0' 1  1' 1' 2  2' 2' 3  3' 3' .  .  .  .

        0  a forward pass of micro-batch 0       0' 0'  its backward pass, which takes twice as long

    With `S` stages and `M` micro-batches a stage waits for `(S - 1) / (M + S - 1)` of a step, as with `gpipe`, but
    stage `s` keeps the activations of only `min(S - s, M)` micro-batches. It sends as much as with `gpipe`.

    1. Stage `s` runs the forward passes of its first `S - 1 - s` micro-batches.
    2. Then it repeats: one more forward pass, and the oldest backward pass.
    3. After the last forward pass it runs the remaining backward passes.

    Before a stage sends a gradient back it receives its next input. So two neighbours never both send: it would work
    without any buffer between them.

    Reference: Narayanan et al., "PipeDream: generalized pipeline parallelism for DNN training", 2019, with the
    flush of "Memory-efficient pipeline-parallel DNN training", 2021.
    """

    def order(self, stage: int, stages: int, microbatches: int) -> Iterator[Action]:
        ahead = min(stages - 1 - stage, microbatches)
        for number in range(ahead):
            yield Action(Kind.RECEIVE_FORWARD, number)
            yield Action(Kind.FORWARD, number)
            yield Action(Kind.SEND_FORWARD, number)
        if ahead < microbatches:
            yield Action(Kind.RECEIVE_FORWARD, ahead)
        for number in range(microbatches):
            newest = number + ahead
            if newest < microbatches:
                yield Action(Kind.FORWARD, newest)
                yield Action(Kind.SEND_FORWARD, newest)
            yield Action(Kind.RECEIVE_BACKWARD, number)
            yield Action(Kind.BACKWARD, number)
            if newest + 1 < microbatches:
                yield Action(Kind.RECEIVE_FORWARD, newest + 1)
            yield Action(Kind.SEND_BACKWARD, number)

    def alive(self, stage: int, stages: int, microbatches: int) -> int:
        return min(stages - stage, microbatches)
