"""The exchange, bucket size and compression of gradients, either requested or chosen by measuring. NumPy only."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from easyscale import compression, exchange
from easyscale.choice import Choice, FormChoice, choose, choose_form
from easyscale.compression import Compression
from easyscale.exchange import Exchange
from easyscale.layout.specs import Spec
from easyscale.step.compressed_sums import CompressedSums

__all__ = ["FormToChoose", "ReduceConfig"]


class FormToChoose(NamedTuple):
    """The inputs to the choice of a codec.

    Attributes:
        sums_in: Function. Returns the `CompressedSums` of a codec; `None` for `None`.
        gathers: Bool. Whether compressed sums are gathered, rather than weights.
    """

    sums_in: Callable[[Compression | None], CompressedSums | None]
    gathers: bool


class ReduceConfig:
    """The exchange, bucket size and compression of one optimizer's gradients.

    Args:
        exchange: A connected `Exchange`.
        bucket_bytes: Int. The approximate size of a bucket of gradients; `None`: one bucket per dtype.
        fixed: Bool. Whether to keep this exchange. If not, another may be chosen.
        sums: `CompressedSums` for dense gradients. Defaults to `None`: they are not compressed.
        forms: `FormToChoose`. Defaults to `None`: the codec is not chosen.

    Attributes:
        exchange, bucket_bytes, sums: The current ones.
        choice: The `Choice` of exchange and bucket size; `None` until it is made.
        form_choice: The `FormChoice`; `None` if none was made.
    """

    def __init__(
        self,
        exchange: Exchange,
        bucket_bytes: int | None,
        fixed: bool,
        sums: CompressedSums | None = None,
        forms: FormToChoose | None = None,
    ):
        self.exchange, self.bucket_bytes, self.sums = exchange, bucket_bytes, sums
        self._fixed, self._forms = fixed, forms
        self.choice: Choice | None = None
        self.form_choice: FormChoice | None = None

    def choose(self, specs: Sequence[Spec]) -> None:
        """Choose, on the first call, what has been left open. All workers must call this the same way.

        Args:
            specs: `Spec` of each gradient.
        """
        communicator = self.exchange.communicator
        if self.choice is not None or communicator.size == 1:
            return
        self.choice = choose(self.exchange, specs, self._fixed, self.bucket_bytes)
        self.exchange, self.bucket_bytes = self.choice.exchange, self.choice.bucket_bytes
        communicator.progress.exchange = self.exchange.name
        if self._forms is not None:
            self.form_choice = choose_form(self.exchange, specs, self.bucket_bytes, self._forms.gathers)
            self.sums = self._forms.sums_in(self.form_choice.form)

    @property
    def reasons(self) -> list[str]:
        """One line for the user for each choice between several options."""
        return [made.reason for made in (self.choice, self.form_choice) if made is not None and made.reason]

    def chosen(self) -> list | None:
        """Return the choice as the arguments of `take`; `None` if none has been made yet."""
        form = None if self.sums is None else compression.serialize(self.sums.form)
        return self.choice and [self.choice.exchange.name, self.choice.bucket_bytes, form]

    def take(self, name: str, bucket_bytes: int | None, form: dict | None) -> None:
        """Use the exchange, bucket size and codec that other workers have chosen."""
        if name != self.exchange.name:
            self.exchange = exchange.get(name, self.exchange.communicator)
        self.bucket_bytes, self.choice = bucket_bytes, Choice(self.exchange, bucket_bytes, [], "")
        if self._forms is not None:
            self.sums = self._forms.sums_in(compression.get(form))
