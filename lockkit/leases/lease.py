"""What the blocking and the asyncio API have in common: everything but the waiting."""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from lockkit.leases.reentry import Entries, Entry
from lockkit.model.clock import now
from lockkit.model.errors import ConfigurationError, LeaseLost
from lockkit.model.naming import check_name
from lockkit.model.options import LockOptions
from lockkit.model.types import UNSET, Capabilities, Claim, Kind, LeaseState, Mode, Request
from lockkit.model.values import check_label, check_on_lost, check_timeout, check_ttl
from lockkit.runtime import entrants, process
from lockkit.runtime.hold import Hold
from lockkit.runtime.tokens import new_token

if TYPE_CHECKING:
    from lockkit.engine.flow import Granted
    from lockkit.leases.blocks import Block
    from lockkit.model.settings import AliasSettings

__all__ = ["BaseClient", "BaseLease", "BaseLock", "Terms", "hold_of"]

REMEMBERED_NAMES = 1024

REENTERED = {Kind.RW, Kind.REENTRANT}
"""Whoever holds such a name may enter it again."""


class Terms(NamedTuple):
    """What a lock asks for; checked."""

    claim: Claim
    name: str
    ttl: float
    timeout: float | None
    label: str
    on_lost: Callable[[Any], object] | None = None


class BaseClient:
    """Settings, their validation per call, and the hold times that Retry-After comes from."""

    def __init__(self, settings: AliasSettings, capabilities: Capabilities) -> None:
        self.settings = settings
        self._capabilities = capabilities
        self._entries = Entries()
        self._held_for: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.settings.alias!r} at {self.settings.shown_location}>"

    def retry_after(self, name: str) -> int:
        """Whole seconds (1 to 60) after which another try is worth it, from recent hold times."""
        return min(max(math.ceil(self._held_for.get(name, 0.0)), 1), 60)

    def note_hold(self, name: str, seconds: float) -> None:
        """Remember a hold time (moving average; of the names used last, so memory is bounded)."""
        held = self._held_for
        before = held.get(name)
        if before is None and len(held) >= REMEMBERED_NAMES:
            held.clear()
        held[name] = seconds if before is None else (3 * before + seconds) / 4

    def _terms(self, claim: Claim, name: str, options: LockOptions) -> Terms:
        settings = self.settings
        ttl, timeout = options.get("ttl", UNSET), options.get("timeout", UNSET)
        return Terms(
            claim,
            self._name(name),
            settings.ttl if ttl is UNSET else self._ttl(ttl),
            settings.acquire_timeout if timeout is UNSET else self._timeout(timeout),
            check_label(options.get("label", "")),
            check_on_lost(options.get("on_lost")),
        )

    def _name(self, name: str) -> str:
        return check_name(name)

    def _ttl(self, ttl: object) -> float:
        return check_ttl("ttl", ttl)

    def _timeout(self, timeout: object) -> float | None:
        return check_timeout("timeout", timeout)


class BaseLock:
    """The description of a claim."""

    __slots__ = ("claim", "label", "name", "on_lost", "timeout", "ttl")

    def __init__(self, terms: Terms) -> None:
        self.claim, self.name, self.ttl, self.timeout, self.label, self.on_lost = terms

    def __repr__(self) -> str:
        kind, permits, *_ = self.claim
        used_as = "" if kind is Kind.MUTEX else f" as {kind.described(permits)}"
        return f"<{type(self).__name__} {self.name!r}{used_as}>"

    def _entrant(self) -> str:
        """Who enters, now: by a word of the user's, or of our own for this thread or task."""
        owner = self.claim.owner
        return entrants.named(owner) if owner else self._itself()

    def _key(self) -> tuple[str, str]:
        return self.name, self._entrant()

    def _itself(self) -> str:
        raise NotImplementedError

    def _request(self, settings: AliasSettings, timeout: float | None, owner: str) -> Request:
        kind, permits, shared, _, fair = self.claim
        return Request(
            self.name,
            new_token(),
            self.ttl,
            owner,
            Mode.TRY if timeout == 0 else Mode.ENQUEUE,
            settings.max_queue,
            settings.max_hold,
            False,
            0,
            kind,
            permits,
            shared,
            self._entrant() if kind in REENTERED else "",
            fair,
        )


class Keeper(Protocol):
    """What a lease is held for, such as a transaction."""

    def is_open(self) -> bool: ...


class BaseLease:
    """A held claim as its holder sees it. The state is local: reading it costs no round trip."""

    __slots__ = ("__weakref__", "_block", "_entry", "_hold", "_kept_by", "released")

    def __init__(self, hold: Hold, entry: Entry | None = None) -> None:
        self._hold = hold
        self._entry = entry  #: by which several leases share the hold
        self._block: Block | None = None  #: the ``with`` statement that it is for
        self._kept_by: tuple[Keeper, ...] = ()  #: they give it back, and nobody else
        self.released = False
        hold.share(self)

    @property
    def name(self) -> str:
        return self._hold.request.name

    @property
    def names(self) -> tuple[str, ...]:
        """It alone. A lease on several names has more, and is used in the same way."""
        return (self.name,)

    def __getitem__(self, name: str) -> Self:
        """The lease on this name. Raises KeyError for another one."""
        if name != self.name:
            raise KeyError(name)
        return self

    @property
    def token(self) -> str:
        """The secret that proves this claim. Do not log it."""
        return self._hold.request.token

    @property
    def fencing_token(self) -> int:
        """Grows with every grant of the name: have the protected resource refuse smaller ones.

        That is for those who hold it alone; of several who share it, no one is the latest.
        """
        return self._hold.fence

    @property
    def shared(self) -> bool:
        """Whether others may hold the name at the same time."""
        return self._hold.request.shared

    @property
    def _ended(self) -> bool:
        """Whether nobody uses it any more: it was released, or its block was left by an interrupt
        that came before the release. Then it is renewed no more."""
        left = self._block is not None and self._block() is None
        return self.released or (left and not self._kept_by)

    def _belong_to(self, block: Block | None) -> None:
        self._block = block

    @property
    def lost(self) -> bool:
        """Whether the claim can no longer be relied on. Final. True after release, too."""
        return self.released or self._hold.lost(now())

    @property
    def state(self) -> LeaseState:
        """``HELD``; ``UNKNOWN`` from a renewal that failed to the next that is done; or ``LOST``.

        Unknown is not lost: ``lost`` and ``check()`` go by the deadline alone.
        """
        if self.lost:
            return LeaseState.LOST
        return LeaseState.UNKNOWN if self._hold.unknown else LeaseState.HELD

    def remaining(self) -> float:
        """Seconds for which the claim can be relied on if no renewal succeeds; 0 when lost."""
        return 0.0 if self.lost else max(0.0, self._hold.deadline - now())

    def check(self) -> None:
        """Raise LeaseLost, which says why, if the claim can no longer be relied on. No round trip.

        It is what this process knows: of a lease that an operator has released it hears at its
        next renewal, up to a third of the TTL later.
        """
        if self.released:
            raise LeaseLost(f"the lease on {self.name!r} was released", name=self.name)
        if self.lost:
            raise self._hold.loss(now())

    def __repr__(self) -> str:
        state = "released" if self.released else self.state
        return f"<{type(self).__name__} {self.name!r} {state}, fence {self.fencing_token}>"

    def __del__(self) -> None:
        if not getattr(self, "released", True):
            complaint = f"{self!r} was never released"
            self.released = True
            if not self._is_inner():
                self._hold.lose()  # the watchdog drops it, so it expires
            if self._hold.generation == process.generation():
                warnings.warn(complaint, ResourceWarning, source=self, stacklevel=2)

    @property
    def _foreign(self) -> bool:
        """Made before a fork: it belongs to the parent."""
        return not process.is_generation(self._hold.generation)

    def _check_alive(self) -> None:
        self.check()

    def _check_writer(self) -> None:
        self.check()
        if self._hold.request.kind is not Kind.RW:
            raise ConfigurationError(
                f"{self!r} is not a lease of a reader-writer lock: nobody could share it"
            )

    def _is_inner(self) -> bool:
        """Whether others that share the claim go on; called once, when it is released."""
        if self._entry is None or self._entry.leave():
            return False
        if self._hold.leases is not None:
            self._hold.leases.pop(id(self), None)
        if self._hold.on_lost is not None:
            self._hold.on_lost.pop(id(self), None)
        return True

    def _tell_when_lost(self, on_lost: Callable[[Any], object] | None) -> bool:
        """Have it told; of leases that share a claim, each. Whether it wants to be told."""
        if on_lost is None:
            return False
        hold = self._hold
        if hold.on_lost is None:
            hold.on_lost = {}
        hold.on_lost[id(self)] = _Notice(weakref.ref(self), on_lost)
        return True

    def _finish(self) -> bool:
        """Whether this call is the first release."""
        first = not self.released
        self.released = True
        return first


def hold_of(granted: Granted) -> Hold:
    return Hold(granted.request, granted.fence, granted.deadline, granted.now, whole=granted.whole)


class _Notice:
    """Calls ``on_lost`` with the lease, unless it is released or nobody has it any more."""

    __slots__ = ("_lease", "_on_lost")

    def __init__(self, lease: weakref.ref[BaseLease], on_lost: Callable[[Any], object]) -> None:
        self._lease = lease
        self._on_lost = on_lost

    def __call__(self) -> object:
        lease = self._lease()
        return None if lease is None or lease.released else self._on_lost(lease)
