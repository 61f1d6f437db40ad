"""What "auto" stands for, measured on a model's own gradients and on the network that there is.

of_exchange  the exchange, and the size of buckets
of_form      the form in which gradients travel, or none
measuring    how long something takes on all ranks
"""

from easyscale.choice.of_exchange import Choice, Timing, choose
from easyscale.choice.of_form import FormChoice, FormTiming, choose_form

__all__ = ["Choice", "FormChoice", "FormTiming", "Timing", "choose", "choose_form"]
