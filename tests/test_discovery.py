"""Classes that are asked for by name: which are known, and what is said of a name that is not."""

import abc

import pytest

from easyscale.discovery import Registry, make

PACKAGE = "easyscale.layout"  # one that registers nothing


class Animal:
    name = ""


class Cat(Animal):
    name = "cat"


class Kitten(Cat):
    """Has no name of its own."""


class Tiger(Kitten):
    name = "tiger"


def test_what_is_registered_has_its_name_and_is_found_by_it():
    known = Registry("animal", PACKAGE)

    @known.register("dog")
    class Dog: ...

    known.register("ant")(type("Ant", (), {}))
    assert Dog.name == "dog"
    assert known.find("dog") is Dog
    assert list(known.classes()) == ["ant", "dog"]


def test_what_inherits_from_a_base_is_found_if_it_has_a_name_of_its_own():
    assert Registry("animal", PACKAGE, base=Animal).classes() == {"cat": Cat, "tiger": Tiger}


def test_registries_know_nothing_of_each_other():
    Registry("animal", PACKAGE).register("dog")(type("Dog", (), {}))
    assert Registry("animal", PACKAGE).classes() == {}


@pytest.mark.parametrize("name", ["tigre", 3, None, ["bee"]])
def test_a_name_that_is_not_there_is_told_those_that_are(name):
    known = Registry("animal", PACKAGE, base=Animal, also=" or an `Animal`")
    with pytest.raises(ValueError) as error:
        known.find(name)
    rule = f"`animal` must be one of ['cat', 'tiger'] or an `Animal`. Received: animal={name!r}"
    assert str(error.value) == rule + (". Did you mean 'tiger'?" if name == "tigre" else "")


class Base(abc.ABC):
    @abc.abstractmethod
    def speak(self): ...


class Dog(Base):
    def __init__(self, age: int = 1):
        self.age = age

    def speak(self):
        raise TypeError("a mistake of its own")


@pytest.mark.parametrize(
    ("kind", "arguments", "problem"),
    [
        (Dog, {"aeg": 3}, "Dog with {'aeg': 3}: got an unexpected keyword argument 'aeg'; it is Dog(age: int = 1)"),
        (Base, {}, "Base with {}: a class with methods to be written"),
    ],
)
def test_arguments_that_a_class_does_not_take_are_told_of(kind, arguments, problem):
    with pytest.raises(ValueError) as error:
        make("animal", kind, arguments)
    assert str(error.value) == f"`animal` must be one that can be made. Received: {problem}. Pass an instance"
    assert make("animal", Dog, {"age": 2}).age == 2
