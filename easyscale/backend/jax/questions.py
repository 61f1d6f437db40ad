"""Questions: totals over all workers' batches that a step needs, requested before the step runs.

Compiled code cannot communicate. So a step is traced once to record its questions. Then only their vectors are
computed, mostly sums of weights and masks, and all workers are asked; after that the step runs with the answers. A
question must not depend on the answer to an earlier one, which is NaN while questions are recorded.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

__all__ = ["Question", "ask", "answering", "recording"]


class Question(NamedTuple):
    """A vector to total, a fingerprint of the batch, to compare between workers, and the function that totals."""

    vector: jax.Array
    fingerprint: jax.Array | None
    total: Callable[[Any, Any], jax.Array]


class _Step(threading.local):
    """The handler of questions for the step that is being traced on this thread."""

    answer: Callable[[Question], jax.Array] | None = None


_step = _Step()


def ask(vector: jax.Array, fingerprint: jax.Array | None, total: Callable[[Any, Any], jax.Array]) -> jax.Array:
    """Return `total(vector, fingerprint)`; in a traced step, the answer obtained before.

    Args:
        vector: Array. This worker's.
        fingerprint: Array, or `None`.
        total: Function. Asks all workers.
    """
    question = Question(vector, fingerprint, total)
    return total(vector, fingerprint) if _step.answer is None else _step.answer(question)


@contextlib.contextmanager
def _answered_by(answer: Callable[[Question], jax.Array]) -> Iterator[None]:
    before, _step.answer = _step.answer, answer
    try:
        yield
    finally:
        _step.answer = before


@contextlib.contextmanager
def recording() -> Iterator[list[Question]]:
    """Record questions in a list within this context, instead of asking them."""
    questions: list[Question] = []

    def record(question: Question) -> jax.Array:
        questions.append(question)
        return jnp.full_like(question.vector, jnp.nan)

    with _answered_by(record):
        yield questions


@contextlib.contextmanager
def answering(answers: Sequence[jax.Array]) -> Iterator[None]:
    """Answer questions in order within this context."""
    given = iter(answers)
    with _answered_by(lambda question: next(given)):
        yield
