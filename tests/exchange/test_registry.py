"""Which exchange a name, a class, an instance or the environment stands for."""

import warnings

import numpy as np
import pytest

import easyscale
from easyscale import exchange
from easyscale.exchange import Exchange, registry


class Mail(Exchange):
    """An exchange of the user's own: everybody sends everything to everybody."""

    def _reduce(self, buffer):
        buffer[:] = self.communicator.all_gather_rows(buffer).sum(axis=0)

    def _gather(self, buffer):
        whole = np.zeros_like(buffer)
        whole[self.owned(buffer.size)] = buffer[self.owned(buffer.size)]
        buffer[:] = self.communicator.all_gather_rows(whole).sum(axis=0)


@pytest.fixture(autouse=True)
def no_setting(monkeypatch):
    monkeypatch.delenv("EASYSCALE_EXCHANGE", raising=False)


def test_available_names_are_sorted_and_there():
    names = exchange.available()
    assert {"mpi", "ring", "tree"} <= set(names)
    assert names == sorted(set(names))
    assert "auto" not in names  # a rule for choosing, no exchange


def test_a_name_is_a_new_exchange_each_time():
    ring = exchange.get("ring")
    assert ring.name == "ring"
    assert exchange.get("ring") is not ring
    assert isinstance(exchange.get("ring"), type(ring))


def test_the_default_is_auto():
    assert type(exchange.get()) is type(exchange.get("auto"))
    assert exchange.get("auto").name in exchange.available()


def test_it_is_connected_to_the_communicator(run_ranks):
    assert run_ranks(3, lambda comm: exchange.get("tree", comm).communicator is comm) == [True] * 3
    assert run_ranks(3, lambda comm: exchange.get("tree").communicator is comm) == [True] * 3


@pytest.mark.parametrize("identifier", [Mail, Mail()], ids=["class", "instance"])
def test_an_exchange_of_ones_own_works(identifier):
    assert exchange.get(identifier).name == "Mail"
    assert exchange.get(identifier).owned(4) == slice(0, 4)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_an_exchange_of_ones_own_sums(run_ranks, size):
    def on_rank(comm):
        buffer = np.arange(5, dtype="float16") + comm.rank
        exchange.get(Mail(), comm).allreduce(buffer)
        return buffer.tolist()

    expected = (size * np.arange(5) + size * (size - 1) // 2).tolist()
    assert run_ranks(size, on_rank) == [expected] * size


def test_a_class_of_ones_own_is_not_available_by_name():
    with pytest.raises(ValueError):
        exchange.get("Mail")


def test_a_registered_class_is_available_by_name(monkeypatch):
    exchange.available()
    monkeypatch.setattr(registry._registry, "_registered", dict(registry._registry._registered))

    @exchange.register("post")
    class Post(Mail): ...

    assert "post" in exchange.available()
    assert type(exchange.get("post")) is Post
    assert Post.name == "post"


@pytest.mark.parametrize(
    "identifier, hint",
    [
        ("rnig", ". Did you mean 'ring'?"),
        ("Tree", ". Did you mean 'tree'?"),
        ("hierarchical:rign", ". Did you mean 'hierarchical:ring'?"),
        ("ring:tree", ". Did you mean 'tree'?"),
        ("comet", ""),
        (3, ""),
        (int, ""),
    ],
)
@pytest.mark.parametrize("function", [exchange.get, exchange.check])
def test_an_unknown_name_is_named_with_the_nearest_match(function, identifier, hint):
    with pytest.raises(ValueError) as raised:
        function(identifier)
    valid = ["auto", *exchange.with_options()]
    assert str(raised.value) == (
        f"`exchange` must be one of {valid} or an `Exchange`. Received: exchange={identifier!r}{hint}"
    )


def test_check_connects_nothing():
    mail = Mail()
    exchange.check(mail)
    exchange.check("ring")
    exchange.check(None)
    with pytest.raises(ValueError, match="must be connected first"):
        mail.communicator  # noqa: B018


def test_the_environment_says_which_where_the_script_does_not(monkeypatch):
    monkeypatch.setenv("EASYSCALE_EXCHANGE", "tree")
    assert exchange.get().name == "tree"
    monkeypatch.setenv("EASYSCALE_EXCHANGE", "mpi")
    assert exchange.get(None).name == "mpi"


def test_the_argument_wins_over_the_environment(monkeypatch):
    monkeypatch.setenv("EASYSCALE_EXCHANGE", "tree")
    assert exchange.get("ring").name == "ring"
    assert exchange.get(Mail).name == "Mail"


def test_an_unknown_name_in_the_environment_is_an_error_only_where_it_counts(monkeypatch):
    monkeypatch.setenv("EASYSCALE_EXCHANGE", "treee")
    with pytest.raises(ValueError, match=r"Received: EASYSCALE_EXCHANGE='treee'\. Did you mean 'tree'\?"):
        exchange.get()
    assert exchange.get("ring").name == "ring"


def test_that_the_script_wins_over_the_launcher_is_said(monkeypatch):
    def connect(name):
        return easyscale.DistributedOptimizer("sgd", name).workers

    monkeypatch.setenv("EASYSCALE_EXCHANGE", "parameter_server:sync")
    told = "an exchange that the script names wins over that of `easyscale launch`. Received: exchange='ring' in the "
    with pytest.warns(easyscale.EasyScaleWarning, match=told + "script, --exchange parameter_server. Leave it out"):
        connect("ring")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("parameter_server", "parameter_server:sync", None):
            connect(name)
    with pytest.warns(easyscale.EasyScaleWarning, match="Received: exchange='auto' in the script"):
        connect("auto")


def test_an_empty_environment_variable_says_nothing(monkeypatch):
    monkeypatch.setenv("EASYSCALE_EXCHANGE", "")
    assert type(exchange.get()) is type(exchange.get("auto"))
