"""Chooses the tests of a store, by its traits and by how it is reached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from lockkit.stores import contract
from lockkit.testing.targets import ServerTarget, Target

Test = TypeVar("Test", bound=Callable[..., Any])


class Without(NamedTuple):
    """A store that does not declare this trait, or is not reached in this way."""

    trait: Any  #: a class of stores or targets, abstract or not


Wanted = type[contract.Store] | type[Target] | Without

PROCESSES = Without(contract.ProcessLocal)
"""Several processes can use the store."""

UNHARMED = (PROCESSES, Without(contract.HostLocal), Without(ServerTarget))
"""Other hosts reach the store, so it has a server. No test makes the server fail."""


def needs(*wanted: Wanted) -> Callable[[Test], Test]:
    """Run this test, or those of this class, only for stores that declare these traits, and are
    reached in this way."""

    def mark(test: Test) -> Test:
        setattr(test, "needs", wanted)  # noqa: B010  no type declares it
        return test

    return mark


def test_of(suite: type, name: str) -> Any:
    """The test with this name, even if a base class took it out: that was for another store."""
    return next(filter(None, (vars(kind).get(name) for kind in suite.__mro__)), None)


def replaced_in(suite: type) -> list[str]:
    """The tests of ours that this class, or one that is mixed in, defines anew. It must not: a test
    that only passes or skips would look like a promise that was kept."""
    if _is_ours(suite):
        return []
    ours = {name for kind in suite.__mro__ if _is_ours(kind) for name in vars(kind)}
    return [
        name
        for kind in suite.__mro__
        for name, test in vars(kind).items()
        if name.startswith("test_") and name in ours and not _is_ours(kind)
        if kind is suite or not (test is None or _is_ours(test))
    ]


def _is_ours(what: Any) -> bool:
    return str(what.__module__).startswith(f"{__package__}.")


def wanted_by(suite: type, name: str) -> tuple[Wanted, ...]:
    """What a test needs, and what all tests of its class need."""
    test = test_of(suite, name)
    *_, owner = (kind for kind in suite.__mro__ if vars(kind).get(name) is test)
    own: tuple[Wanted, ...] = getattr(test, "needs", ())
    return (*own, *vars(owner).get("needs", ()))
