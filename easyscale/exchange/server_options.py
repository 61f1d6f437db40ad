"""The options of a parameter server: their valid values, and the modes that use them."""

from easyscale.errors import unknown

__all__ = ["MODES", "check_options"]

MODES = ("sync", "async", "bounded")

# The modes that use an option, and its value in the others.
_MODES_OF: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("push_every", "pull_every", "delay_compensation"), ("async", "bounded")
)
_MODES_OF |= {"staleness": ("bounded",), "backup_workers": ("sync",)}
_UNUSED = {"push_every": 1, "pull_every": 1, "delay_compensation": 0, "staleness": None, "backup_workers": 0}


def check_options(
    mode: str,
    staleness: int | None,
    backup_workers: int,
    push_every: int,
    pull_every: int,
    delay_compensation: float,
) -> int:
    """Check options of `ParameterServer`; return the `staleness` to use.

    Raises:
        ValueError: If an option is invalid, or belongs to another mode.
    """
    if mode not in MODES:
        raise ValueError(unknown("mode", mode, list(MODES)))
    given: dict[str, float] = {"push_every": push_every, "pull_every": pull_every, "backup_workers": backup_workers}
    given |= {} if staleness is None else {"staleness": staleness}
    for option, value in given.items():
        least = int(option.endswith("_every"))
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"`{option}` must be an integer of {least} or more. Received: {option}={value!r}")
    is_number = isinstance(delay_compensation, (int, float)) and not isinstance(delay_compensation, bool)
    if not is_number or not 0 <= delay_compensation < float("inf"):
        raise ValueError(f"`delay_compensation` must be a number of 0 or more. Received: {delay_compensation=}")
    given |= {"delay_compensation": delay_compensation}
    for option, modes in _MODES_OF.items():
        if mode not in modes and given.get(option, _UNUSED[option]) != _UNUSED[option]:
            valid = " and ".join(map(repr, modes))
            raise ValueError(
                f"`{option}` is for the {'modes' if len(modes) > 1 else 'mode'} {valid}. Received: {mode=}, "
                f"{option}={given[option]!r}. Leave it out, or choose another mode"
            )
    staleness = 4 if staleness is None else staleness
    if mode == "bounded" and staleness < max(push_every, pull_every) > 1:
        raise ValueError(
            "`staleness` must be as large as `push_every` and `pull_every`. "
            f"Received: {staleness=}, {push_every=}, {pull_every=}"
        )
    return staleness
