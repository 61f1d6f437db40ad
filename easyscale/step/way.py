"""On which way gradients travel: as it was asked for, or as it is chosen when they are known. NumPy only."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from easyscale import compression, exchange
from easyscale.choice import Choice, FormChoice, choose, choose_form
from easyscale.compression import Compression
from easyscale.exchange import Exchange
from easyscale.layout.specs import Spec
from easyscale.step.compressed_sums import CompressedSums

__all__ = ["FormToChoose", "Way"]


class FormToChoose(NamedTuple):
    """What is known of the form of gradients before it is chosen.

    Attributes:
        sums_in: Function. Returns the `CompressedSums` in a form; `None` for `None`.
        gathers: Bool. Whether the sum comes back in the form, and not weights.
    """

    sums_in: Callable[[Compression | None], CompressedSums | None]
    gathers: bool


class Way:
    """The exchange, the size of vectors and the form by which the gradients of one optimizer travel.

    Args:
        exchange: A connected `Exchange`.
        bucket_bytes: Int. Gradients travel in vectors of about this size; `None`: one for each dtype.
        fixed: Bool. Whether the exchange was asked for. If not, another may be chosen.
        sums: `CompressedSums`. In which dense gradients travel. Defaults to `None`: as they are.
        forms: `FormToChoose`. How a form is chosen. Defaults to `None`: there is no choice.

    Attributes:
        exchange, bucket_bytes, sums: What is used now.
        choice: The `Choice` of exchange and buckets, or `None` if there has been none yet.
        form_choice: The `FormChoice`, or `None` if there has been none.
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
        """Choose, the first time, what is left open. All workers must call this alike.

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
        """One line for the user for each choice between several."""
        return [made.reason for made in (self.choice, self.form_choice) if made is not None and made.reason]

    def chosen(self) -> list | None:
        """Return the arguments of `take`, or `None` if there has been no choice yet."""
        form = None if self.sums is None else compression.serialize(self.sums.form)
        return self.choice and [self.choice.exchange.name, self.choice.bucket_bytes, form]

    def take(self, name: str, bucket_bytes: int | None, form: dict | None) -> None:
        """Use the exchange of this name, buckets of this size and the form, which other workers have chosen before."""
        if name != self.exchange.name:
            self.exchange = exchange.get(name, self.exchange.communicator)
        self.bucket_bytes, self.choice = bucket_bytes, Choice(self.exchange, bucket_bytes, [], "")
        if self._forms is not None:
            self.sums = self._forms.sums_in(compression.get(form))
