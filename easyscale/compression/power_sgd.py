"""Low-rank compression: two thin factors of each gradient matrix."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from easyscale.compression.compression import Compression, Span, StepOfForm, SupportsReduce
from easyscale.errors import is_number

__all__ = ["PowerSGD"]

_PART = 1 << 17  # elements of a matrix that stay in the second-level cache from one product to the next


class PowerSGD(Compression):
    """A gradient as a low-rank matrix: the product of two thin factors, each of which is summed over ranks.

        P = sum_r M_r Q                         M_r is rank r's gradient, n x m; Q of the step before, m x rank
        P = orthogonal(P)                       the same on all ranks
        Q = sum_r M_r^T P
        sum_r M_r ~ P Q^T

    Sums are exact, in float32, through any exchange. A kernel of `n x m` travels as `rank * (n + m)` numbers: one of
    1,024 x 1,024 as 1/128, at rank 4. In a kernel with more axes, such as a convolution's, the last is `m` and all
    others are `n`. Vectors, and matrices whose factors are not smaller, travel uncompressed. What a step leaves out of
    a rank's own gradient, `M_r - P (M_r^T P)^T`, stays there as its residual; see `ErrorFeedback`.

    Factors and residuals take memory. Products of matrices with thin ones and two orthogonalisations take time, which
    matters least for large kernels. All ranks compute the same factors from the same sums, if they have the same kind
    of processor and the same NumPy. Factors are part of a checkpoint; in an elastic job they start over when workers
    change.

    Args:
        rank: Int. The number of columns of a factor. Defaults to `4`.
        start_step: Int. The number of first steps in which gradients travel uncompressed: early in training they
            change too fast to be tracked. Defaults to `0`.

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> PowerSGD(rank=2, start_step=100)
    PowerSGD(rank=2, start_step=100)

    Reference: Vogels, Karimireddy and Jaggi, "PowerSGD: practical low-rank gradient compression for distributed
    optimization", 2019.
    """

    name = "power_sgd"
    keeps_error = True

    def __init__(self, rank: int = 4, start_step: int = 0):
        for argument, value, least in (("rank", rank, 1), ("start_step", start_step, 0)):
            if not is_number(value, least, whole=True) or isinstance(value, bool):
                raise ValueError(
                    f"`{argument}` must be an integer, {least} or more. Received: {argument}={value!r}. "
                    f"{'Use such as 4' if least else 'Leave it out to send low ranks from the first step on'}"
                )
        self.rank, self.start_step = int(rank), int(start_step)

    def shortens(self, shape: tuple[int, ...]) -> bool:
        if len(shape) < 2:
            return False
        rows, columns = math.prod(shape[:-1]), shape[-1]
        return self.rank * (rows + columns) < rows * columns

    def sum(
        self,
        exchange: SupportsReduce,
        vector: np.ndarray,
        step: StepOfForm,
        left_out: np.ndarray | None = None,
        gathers: bool = True,
    ) -> None:
        if step.number < self.start_step:
            (exchange.allreduce if gathers else exchange.reduce)(vector)
        else:
            with np.errstate(over="ignore", invalid="ignore"):  # from numbers that are not finite
                self._sum(exchange, vector, step, left_out)

    def _sum(self, exchange: SupportsReduce, vector: np.ndarray, step: StepOfForm, left_out: np.ndarray | None) -> None:
        matrices = [span for span in step.spans if self.shortens(span.shape)]
        wholes = [span for span in step.spans if span not in matrices]
        lefts, rights = ([shape[side] for shape in map(self._shapes, matrices)] for side in (0, 1))
        first, (*left, rest) = _lend(exchange, [*lefts, (sum(span.stop - span.start for span in wholes),)])
        second, right = _lend(exchange, rights)

        gradients = [vector[span.start : span.stop].reshape(len(p), -1) for span, p in zip(matrices, left, strict=True)]
        for span, gradient, p in zip(matrices, gradients, left, strict=True):
            factor = self._factor(step, span)
            for rows in _parts(gradient):
                np.matmul(gradient[rows], factor, out=p[rows])
        _copy(wholes, vector, rest, to_rest=True)
        exchange.allreduce(first)
        for span, gradient, p, q in zip(matrices, gradients, left, right, strict=True):
            p[:] = _orthogonal(p)
            q[:] = 0
            for rows in _parts(gradient):
                q += np.matmul(gradient[rows].T, p[rows])
            if left_out is not None:
                own = left_out[span.start : span.stop].reshape(gradient.shape)
                for rows in _parts(gradient):
                    np.subtract(gradient[rows], np.matmul(p[rows], q.T), out=own[rows])
        exchange.allreduce(second)
        for span, gradient, p, q in zip(matrices, gradients, left, right, strict=True):
            for rows in _parts(gradient):
                np.matmul(p[rows], q.T, out=gradient[rows])
            if np.isfinite(q).all():
                step.factors[span.number] = _orthogonal(q)
        _copy(wholes, vector, rest, to_rest=False)

    def _shapes(self, span: Span) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the shapes of a gradient's factors."""
        rows, columns = math.prod(span.shape[:-1]), span.shape[-1]
        rank = min(self.rank, rows, columns)
        return (rows, rank), (columns, rank)

    def _factor(self, step: StepOfForm, span: Span) -> np.ndarray:
        """Return the second factor of the step before, or an initial one, the same on all ranks."""
        _, shape = self._shapes(span)
        factor = step.factors.get(span.number)
        if factor is None or factor.shape != shape:
            start = np.random.default_rng(span.number).normal(size=shape)
            factor = step.factors[span.number] = _orthogonal(start.astype(np.float32))
        return factor


def _parts(matrix: np.ndarray) -> Iterator[slice]:
    """Yield slices of some rows of a matrix. Products with thin factors take half the time in such parts."""
    count = max(1, _PART // matrix.shape[1])
    for start in range(0, len(matrix), count):
        yield slice(start, start + count)


def _lend(exchange: SupportsReduce, shapes: Sequence[tuple[int, ...]]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return a vector that an exchange lends, and its pieces, of these shapes."""
    sizes = [math.prod(shape) for shape in shapes]
    vector = exchange.lend(sum(sizes), "float32")
    pieces = np.split(vector, np.cumsum(sizes)[:-1]) if sizes else []
    return vector, [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]


def _copy(spans: list[Span], vector: np.ndarray, rest: np.ndarray, to_rest: bool) -> None:
    """Copy these parts of a vector to another, one after the other, or back."""
    start = 0
    for span in spans:
        part, own = vector[span.start : span.stop], rest[start : start + span.stop - span.start]
        np.copyto(own, part) if to_rest else np.copyto(part, own)
        start += own.size


def _orthogonal(matrix: np.ndarray) -> np.ndarray:
    """Return a matrix with orthonormal columns that span the same space as those of `matrix`."""
    return np.ascontiguousarray(np.linalg.qr(matrix)[0])
