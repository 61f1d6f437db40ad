"""What a step asks of the batches of all workers, which is asked before the step is made.

Inside of what JAX compiles nobody can be asked. So a step is looked through first for what it asks; this alone is
computed, which are mostly sums of weights and masks, and all workers are asked; then the step is made with the answers.
A question must not depend on the answer to an earlier one: it would be asked with NaN.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

__all__ = ["Question", "ask", "answering", "recording"]


class Question(NamedTuple):
    """What is asked: a vector, with what tells whether all workers have the same batch; and who is asked."""

    vector: jax.Array
    fingerprint: jax.Array | None
    total: Callable[[Any, Any], jax.Array]


class _Step(threading.local):
    """What is done with the questions of the step that is being traced on this thread."""

    answer: Callable[[Question], jax.Array] | None = None


_step = _Step()


def ask(vector: jax.Array, fingerprint: jax.Array | None, total: Callable[[Any, Any], jax.Array]) -> jax.Array:
    """Return `total(vector, fingerprint)`: in a step that is traced, what was answered before.

    Args:
        vector: Array. Of this worker.
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
    """Inside, questions are added to a list, and not asked."""
    questions: list[Question] = []

    def record(question: Question) -> jax.Array:
        questions.append(question)
        return jnp.full_like(question.vector, jnp.nan)

    with _answered_by(record):
        yield questions


@contextlib.contextmanager
def answering(answers: Sequence[jax.Array]) -> Iterator[None]:
    """Inside, questions are answered in their order."""
    given = iter(answers)
    with _answered_by(lambda question: next(given)):
        yield
