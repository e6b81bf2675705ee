"""Dangers in the nodes' configurations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lockkit.engine.effects import Step
from lockkit.model.errors import LockError
from lockkit.model.types import Finding
from lockkit.stores.redis.health import eviction, server
from lockkit.stores.redlock.votes import Answers, reason

State = tuple[str | None, list[Finding]]
"""The identity of a node, if the user may ask for it, and its own dangers."""


def state() -> Step[State]:
    """The state of one node."""
    itself = yield from server()
    return itself, (yield from eviction())


def dangers(answers: Answers[State], servers: Sequence[str]) -> Iterator[Finding]:
    """The dangers that the answers of the nodes show."""
    known = dict[str, str]()
    for name, answer in zip(servers, answers, strict=True):
        if answer is None or isinstance(answer, LockError):
            text = f"the node {name} does not vote: {reason(name, answer)}"
            yield Finding("node", text, "Bring it back: fewer others may fail meanwhile.")
            continue
        itself, own = answer
        if itself and known.setdefault(itself, name) != name:
            text = f"{known[itself]} and {name} are one server, which has two votes"
            yield Finding("node", text, "Name each server once in the URL.")
        for danger in own:
            yield danger._replace(text=f"{name}: {danger.text}")
