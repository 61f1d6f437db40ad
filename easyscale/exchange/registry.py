"""Registry of exchanges. To add one, add a file to this folder; no other change is needed."""

import functools
from collections.abc import Callable

from easyscale import communicator as communicators
from easyscale.communicator import Communicator
from easyscale.discovery import Registry
from easyscale.exchange.exchange import Exchange
from easyscale.exchange.on_gpus import OnGpus
from easyscale.settings import Settings

__all__ = [
    "asked",
    "available",
    "candidates",
    "check",
    "get",
    "has_servers",
    "name_of",
    "register",
    "unavailable",
    "with_options",
]

DEFAULT = "auto"
_AUTO = ("shared_memory", "hierarchical")  # what "auto" stands for on one node, and on several
_WITH_SERVERS = "parameter_server"
_ELASTIC = "ring"

_registry: Registry[Exchange] = Registry("exchange", __name__.rpartition(".")[0], also=" or an `Exchange`")


def register(name: str) -> Callable[[type[Exchange]], type[Exchange]]:
    """Register a class under `name`, for `get`, `--exchange`, the benchmark and the tests.

    Args:
        name: String. It becomes the class's attribute `name`.

    Example:

    >>> @easyscale.exchange.register("star")
    ... class Star(easyscale.exchange.Exchange): ...
    """
    return _registry.register(name)


def available() -> list[str]:
    """Return the names of all exchanges that this machine supports, sorted.

    Example:

    >>> "ring" in easyscale.exchange.available()
    True
    """
    return list(_usable())


def unavailable() -> dict[str, list[str]]:
    """Return the names of the exchanges that this machine does not support, by the reason."""
    found: dict[str, list[str]] = {}
    for name, cls in _registry.classes().items():
        if reason := _why_not(cls):
            found.setdefault(reason, []).append(name)
    return found


def _usable() -> dict[str, type[Exchange]]:
    return {name: cls for name, cls in _registry.classes().items() if not _why_not(cls)}


def _why_not(cls: type[Exchange]) -> str | None:
    return cls.why_not() if issubclass(cls, OnGpus) else None


def with_options() -> list[str]:
    """Return the values of `--exchange`, sorted: `available` names, and each with its options after a colon.

    Example:

    >>> [name for name in easyscale.exchange.with_options() if name.startswith("hier")]
    ['hierarchical', 'hierarchical:ring', 'hierarchical:tree']
    """
    classes = _usable()
    return sorted([*classes, *(f"{name}:{option}" for name, cls in classes.items() for option in cls.options)])


def has_servers(name: str) -> bool:
    """Return whether the exchange of this name may have ranks that only serve.

    Args:
        name: String. With or without an option.

    Example:

    >>> has_servers("parameter_server:async"), has_servers("ring")
    (True, False)
    """
    return name == DEFAULT or _registry.find(name.partition(":")[0]).has_servers


def candidates(communicator: Communicator) -> list[Exchange]:
    """Return the exchanges that "auto" may choose for these ranks, connected, one for each class and option.

    Args:
        communicator: The `Communicator` of the ranks.

    Example:

    >>> "ring" in [exchange.name for exchange in candidates(easyscale.communicator.get("local"))]
    True
    """
    made = []
    for cls in _usable().values():
        goes_on = cls.is_elastic or not communicator.membership.is_elastic or communicator.servers
        if goes_on and cls.suits(communicator) and (cls.has_servers or not communicator.servers):
            made += [exchange for exchange in (cls(), *map(cls, cls.options)) if exchange.is_synchronous]
    # An option that is the default has the plain name.
    by_name = {exchange.name: exchange for exchange in reversed(made)}
    return [by_name[name].connect(communicator) for name in sorted(by_name)]


def asked(identifier: str | Exchange | type[Exchange] | None) -> str | Exchange | type[Exchange]:
    """Return `identifier`; for `None`, the value of `EASYSCALE_EXCHANGE`, or `"auto"` if it is not set.

    Args:
        identifier: What `get` takes.

    Example:

    >>> asked("ring"), asked(None)
    ('ring', 'auto')
    """
    return identifier if identifier is not None else Settings.read().exchange or DEFAULT


def check(identifier: str | Exchange | type[Exchange] | None) -> None:
    """Raise the error that `get` would raise for this identifier, without connecting anything.

    Args:
        identifier: What `get` takes.

    Raises:
        ValueError: If there is no exchange of this name.

    Example:

    >>> check("hierarchical:tree")
    """
    _resolve(identifier)


def name_of(identifier: str | Exchange | type[Exchange] | None) -> str:
    """Return the name of the exchange that `get` would return, or `"auto"`.

    Args:
        identifier: What `get` takes.

    Raises:
        ValueError: If there is no exchange of this name.

    Example:

    >>> name_of("hierarchical:ring"), name_of("hierarchical:tree")
    ('hierarchical', 'hierarchical:tree')
    """
    make = _resolve(identifier)
    if make is None:
        return DEFAULT
    return (make if isinstance(make, Exchange) else make()).name


def get(
    identifier: str | Exchange | type[Exchange] | None = None, communicator: str | Communicator | None = None
) -> Exchange:
    """Return an exchange that is connected to a communicator.

    Args:
        identifier: The name of an exchange, an `Exchange`, a custom class, or `None` for the one that
            `easyscale launch --exchange` has set, else `"auto"`. Defaults to `None`.
        communicator: What `easyscale.communicator.get` takes. Defaults to `None`.

    Raises:
        ValueError: If there is no exchange of this name.

    Example:

    >>> easyscale.exchange.get("ring")
    <Ring exchange>
    """
    communicator = communicators.get(communicator)
    make = _resolve(identifier)
    if make is None:
        elastic = communicator.membership.is_elastic and _ELASTIC
        name = _WITH_SERVERS if communicator.servers else elastic or _AUTO[len(communicator.nodes) > 1]
        make = _registry.find(name)
    exchange = make if isinstance(make, Exchange) else make()
    return exchange.connect(communicator)


def _resolve(identifier: str | Exchange | type[Exchange] | None) -> Exchange | Callable[[], Exchange] | None:
    """Return an exchange, or a function that creates one; `None` for "auto"."""
    source = "exchange" if identifier is not None else "EASYSCALE_EXCHANGE"
    identifier = asked(identifier)
    if isinstance(identifier, Exchange) or (isinstance(identifier, type) and issubclass(identifier, Exchange)):
        return identifier
    if identifier == DEFAULT:
        return None
    name, colon, option = identifier.partition(":") if isinstance(identifier, str) else (None, "", "")
    classes = _registry.classes()
    if name not in classes or (colon and option not in classes[name].options):
        raise _registry.error(identifier, [DEFAULT, *with_options()], source)
    make: Callable[..., Exchange] = classes[name]  # with an option, if it has some
    return functools.partial(make, option) if colon else make
