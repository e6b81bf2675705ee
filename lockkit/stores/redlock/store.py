"""Redlock: the claim that has the votes of most nodes holds the name. See the package."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from lockkit.engine.effects import Step
from lockkit.model.checks import wrong
from lockkit.model.clock import now
from lockkit.model.errors import LockError, OutcomeUnknown
from lockkit.model.settings import AliasSettings
from lockkit.model.types import Busy, Finding, Gone, Grant, Release, Renewal, Request
from lockkit.stores.contract import Buried, Store
from lockkit.stores.redis.health import eviction, forgetting, server
from lockkit.stores.redis.protocol import pack
from lockkit.stores.redis.scripts import look
from lockkit.stores.redlock.node import FOR_GOOD, NodeRequests
from lockkit.stores.redlock.settings import Nodes
from lockkit.stores.redlock.votes import (
    Answers,
    Tally,
    are_too_few,
    failure,
    is_yes,
    quorum_of,
    reason,
    together,
)
from lockkit.stores.redlock.wire import RedlockWire
from lockkit.stores.wires import AsyncWire

R = TypeVar("R")
NodeState = tuple[str | None, list[Finding]]
"""The identity of a node, if the user may ask for it, and its own dangers."""

EXTENDED_AT_ONCE = 100


class RedlockStore(Buried, Store):
    """Locks in several Redis servers that know nothing of one another."""

    def __init__(self, nodes: Nodes, prefix: str) -> None:
        self._nodes = nodes
        self._node = NodeRequests(prefix, nodes.restart_delay)
        self._quorum = quorum_of(nodes.servers)

    @classmethod
    def from_settings(cls, settings: AliasSettings) -> RedlockStore:
        return cls(Nodes(settings), settings.key_prefix)

    def wire(self) -> RedlockWire:
        return RedlockWire(self._nodes.makers(), self._nodes.patience)

    def async_wire(self, *, is_shared: bool = False) -> AsyncWire:
        from lockkit.stores.redlock.aio_wire import AsyncRedlockWire

        return AsyncRedlockWire(self._nodes.async_makers(), self._nodes.patience)

    def acquire(self, request: Request) -> Step[Grant | Busy | Gone]:
        """``left`` of a grant counts from before the first node was asked.

        If the votes are too few, they are taken back. Requests of this attempt that are still under
        way are buried: they get no vote. Later attempts with the same token are not buried.
        """
        self._check_ttl(request.ttl)
        stamp = round(now() * 1_000_000)
        answers: Answers[int] = yield from together(
            [self._node.acquire(request, stamp) for _ in self._nodes.servers],
            self._within(request.ttl),
            lambda answers: Tally(answers).is_won or Tally(answers).is_lost,
        )
        if Tally(answers).is_won:
            return Grant(request.token, None, min(request.ttl, self._shared_left(answers)))
        heard = yield from self._take_back(request, stamp, answers)
        if are_too_few(answers) and not Tally(answers).is_lost:
            pairs = zip(answers, heard, strict=True)
            settled = [0 if is_yes(a) and isinstance(h, int) else a for a, h in pairs]
            raise failure(settled, self._nodes.servers)
        return Gone() if answers.count(0) >= self._quorum else Busy()

    def _take_back(self, request: Request, stamp: int, answers: Answers[int]) -> Step[Answers[int]]:
        """Take the votes back, from each node that has voted or may have. Wait only for the nodes
        that have voted."""
        steps = [
            self._node.release(request, stamp, unsure=False)
            if is_yes(answer) or answer is None or isinstance(answer, OutcomeUnknown)
            else None
            for answer in answers
        ]
        voted = [lane for lane, answer in enumerate(answers) if is_yes(answer)]
        return together(
            steps,
            self._nodes.patience,
            lambda heard: all(heard[lane] is not None for lane in voted),
            is_last=True,
        )

    def release(self, request: Request) -> Step[Release]:
        """Release at all nodes. Where nothing is found, an acquire may still be under way: it is
        buried."""
        unsure = request.unsure
        answers: Answers[int] = yield from together(
            [self._node.release(request, FOR_GOOD, unsure=unsure) for _ in self._nodes.servers],
            self._nodes.patience,
            lambda answers: Tally(answers).is_certain,
            is_last=True,
        )
        if not Tally(answers).is_certain:
            raise failure(answers, self._nodes.servers)
        return Release.RELEASED if Tally(answers).is_won else Release.ABSENT

    def extend(self, requests: Sequence[Request]) -> Step[list[Renewal]]:
        """Extend where the lease still is: a node that has lost it does not get it back."""
        renewals = list[Renewal]()
        for start in range(0, len(requests), EXTENDED_AT_ONCE):
            renewals += yield from self._extend(requests[start : start + EXTENDED_AT_ONCE])
        return renewals

    def _extend(self, requests: Sequence[Request]) -> Step[list[Renewal]]:
        for request in requests:
            self._check_ttl(request.ttl)
        answers: Answers[list[int]] = yield from together(
            [self._node.extend(requests) for _ in self._nodes.servers],
            self._within(min(request.ttl for request in requests)),
            lambda answers: all(Tally(each).is_certain for each in _columns(answers, requests)),
        )
        renewals = [self._renewal(each) for each in _columns(answers, requests)]
        errors = [renewal.error for renewal in renewals if renewal.error is not None]
        if len(errors) == len(renewals):
            raise errors[0]
        return renewals

    def _renewal(self, answers: Answers[int]) -> Renewal:
        """If the nodes that did not answer could make the difference, the answer is an error: the
        lease is neither extended nor lost."""
        tally = Tally(answers)
        if tally.is_won:
            return Renewal(self._shared_left(answers))
        return Renewal(None, None if tally.is_certain else failure(answers, self._nodes.servers))

    def check(self) -> Step[None]:
        yield from self._look(lambda: look(pack(b"PING")))

    def health(self) -> Step[list[Finding]]:
        return [*_dangers((yield from self._look(self._state)), self._nodes.servers)]

    def _state(self) -> Step[NodeState]:
        """The state of one node."""
        itself = yield from server()
        found = yield from eviction()
        if not self._nodes.restart_delay:
            found += yield from forgetting()
        return itself, found

    def database(self) -> str:
        return f"{self._nodes.database} of {len(self._nodes.servers)} nodes"

    def _look(self, step: Callable[[], Step[R]]) -> Step[Answers[R]]:
        """The answers of all nodes. Raises BackendError if most of them say nothing."""
        steps = [step() for _ in self._nodes.servers]
        answers: Answers[R] = yield from together(
            steps, self._nodes.patience, lambda answers: None not in answers
        )
        if are_too_few(answers):
            raise failure(answers, self._nodes.servers)
        return answers

    def _shared_left(self, answers: Answers[int]) -> float:
        """Seconds for which most nodes still have the lease."""
        return sorted(filter(is_yes, answers), reverse=True)[self._quorum - 1] / 1000

    def _within(self, ttl: float) -> float:
        """Seconds to wait for votes: one that takes as long as the lease lasts is worth nothing."""
        return min(self._nodes.patience, ttl / 2)

    def _check_ttl(self, ttl: float) -> None:
        """Raise ConfigurationError for a ttl that is longer than ``restart_delay``: a node that has
        forgotten a lease must not vote again before the lease has expired elsewhere."""
        longest = self._nodes.restart_delay
        if longest and ttl > longest:
            raise wrong("ttl", ttl, f"at most restart_delay, which is {longest:g} s for this store")


def _columns(answers: Answers[list[int]], requests: Sequence[Request]) -> Iterator[Answers[int]]:
    """What the nodes say about each request."""
    for number in range(len(requests)):
        yield [a[number] if isinstance(a, list) else a for a in answers]


def _dangers(answers: Answers[NodeState], servers: Sequence[str]) -> Iterator[Finding]:
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
