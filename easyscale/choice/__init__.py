"""The choices made by "auto", measured on a model's own gradients and the available network.

of_exchange  the exchange, and the size of buckets
of_form      the compression of gradients, or none
measuring    timing of an operation on all ranks
"""

from easyscale.choice.of_exchange import Choice, Timing, choose
from easyscale.choice.of_form import FormChoice, FormTiming, choose_form

__all__ = ["Choice", "FormChoice", "FormTiming", "Timing", "choose", "choose_form"]
