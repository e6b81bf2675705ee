"""The part of leases that the blocking and the asyncio API share: all but the waiting."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from lockkit.engine import holding
from lockkit.engine.effects import Step
from lockkit.leases.elsewhere import ABLE
from lockkit.model.checks import check_ttl
from lockkit.model.clock import now
from lockkit.model.errors import ConfigurationError, LeaseLost, LockError, UnsupportedCapability
from lockkit.model.log import log
from lockkit.model.types import Kind, LeaseState, Owner
from lockkit.runtime import process
from lockkit.runtime.hold import Hold
from lockkit.runtime.schedule import DROPPED
from lockkit.stores.contract import Fenced

if TYPE_CHECKING:
    from lockkit.leases.aio_client import AsyncLease
    from lockkit.leases.client import Lease
    from lockkit.leases.lock import BaseClient
    from lockkit.leases.multi import AsyncMultiLease, MultiLease
    from lockkit.leases.reentry import Entry
    from lockkit.leases.statements import Block
    from lockkit.leases.until import Transaction

R = TypeVar("R")
T = TypeVar("T")


class BaseLease:
    """A held claim as its holder sees it. The state is local: reading it costs no round trip."""

    __slots__ = (
        "__weakref__",
        "_block",
        "_client",
        "_entry",
        "_hold",
        "_kept_by",
        "_taker",
        "released",
    )

    def __init__(self, client: BaseClient[Any], hold: Hold, entry: Entry | None = None) -> None:
        self._client = client
        self._hold = hold
        self._entry = entry  #: of a reentrant lock: through it, its leases share the hold
        self._block: Block | None = None  #: the ``with`` statement that releases it
        self._kept_by: tuple[Transaction, ...] = ()  #: their ends release it, and nothing else does
        self._taker: str  #: of a reentrant lock: the key of the thread or task that has taken it
        self.released = False
        hold.share(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a lease cannot be copied or pickled: the end of a copy would end it")

    @property
    def name(self) -> str:
        return self._hold.name

    @property
    def names(self) -> tuple[str, ...]:
        """Its name alone. A lease on several names has more, and is used in the same way."""
        return (self.name,)

    def __getitem__(self, name: str) -> Self:
        """The lease on this name. Raises KeyError for another one."""
        if name != self.name:
            raise KeyError(name)
        return self

    @property
    def token(self) -> str:
        """The secret that proves this claim. Do not log it."""
        return self._hold.token

    @property
    def fencing_token(self) -> int:
        """A number that grows with every grant of the name: have the protected resource refuse
        smaller ones.

        This works only if the name has one holder: of several that share it, none is the latest.
        Raises UnsupportedCapability if the store has no fencing tokens.
        """
        fence = self._hold.fence
        if fence is None:
            raise UnsupportedCapability(
                f"{self._client!r} has no fencing tokens; these stores have them: {ABLE[Fenced]}"
            )
        return fence

    @property
    def shared(self) -> bool:
        """Whether others may hold the name at the same time."""
        return self._hold.request.shared

    @property
    def _ended(self) -> bool:
        """Whether nobody uses this lease any more, so that it is not renewed: it was released, or
        its block or transactions ended without a release, as after an interrupt."""
        left = self._block is not None and self._block() is None
        if self._kept_by:
            left = all(keeper.ended for keeper in self._kept_by)
        return self.released or left

    def _disown(self) -> None:
        """From now on, ``release`` does not leave this lease to the end of a transaction."""
        self._kept_by = ()

    def _belong_to(self, block: Block | None) -> None:
        self._block = block

    @property
    def lost(self) -> bool:
        """Whether the claim can no longer be relied on. Final. Also true after a release."""
        return self.released or self._hold.lost(now())

    @property
    def state(self) -> LeaseState:
        """``HELD``; ``UNKNOWN`` from a failed renewal until the next that succeeds; or ``LOST``.

        An unknown lease is not lost: ``lost`` and ``check()`` rely on it until its deadline.
        """
        if self.lost:
            return LeaseState.LOST
        return LeaseState.HELD if self._hold.failing_since is None else LeaseState.UNKNOWN

    def remaining(self) -> float:
        """Seconds for which the claim can be relied on if no renewal succeeds; 0 when lost."""
        return 0.0 if self.lost else max(0.0, self._hold.deadline - now())

    def check(self) -> None:
        """Raise LeaseLost, which says why, if the claim can no longer be relied on. No round trip.

        Limit: this process hears of an operator's release only at the next renewal, up to a third
        of the TTL later.
        """
        if self.released:
            raise LeaseLost(f"the lease on {self.name!r} was released", name=self.name)
        if self.lost:
            raise self._hold.loss(now())

    def __repr__(self) -> str:
        state = "released" if self.released else self.state
        return f"<{type(self).__name__} {self.name!r} {state}, fence {self._hold.fence}>"

    def __del__(self) -> None:
        if not getattr(self, "released", True) and not self._ended:
            by = Owner.decode(self._hold.request.owner)
            complaint = f"{self!r} was never released; it was acquired in {by.thread} of {by}"
            self.released = True
            if not self._is_inner():
                self._hold.lose(DROPPED)  # the watchdog logs it: this may run in mid-step
            if self._hold.generation == process.generation():
                warnings.warn(complaint, ResourceWarning, source=self, stacklevel=2)

    @property
    def _foreign(self) -> bool:
        """Whether it was made before a fork, and so belongs to the parent."""
        return not process.is_generation(self._hold.generation)

    def _extending(self, ttl: float | None) -> Step[None]:
        hold, client = self._hold, self._client
        if self.released or self._foreign or hold.is_over(now()):
            self.check()
        seconds = hold.ttl if ttl is None else check_ttl("ttl", ttl)
        try:
            yield from holding.extend(client._queue, hold, seconds)
        finally:
            client._watchdog.watch(hold)  # it may be due sooner than before

    def _downgrading(self) -> Step[None]:
        process.notice_fork()
        self.check()
        if self._hold.request.kind is not Kind.RW:
            raise ConfigurationError(
                f"{self!r} is not a lease of a reader-writer lock: nobody could share it"
            )
        yield from holding.downgrade(self._client._queue, self._hold)

    def _releasing(self, silent: holding.Silent | None = None) -> Step[bool]:
        """Release. ``silent``: see ``holding.release``."""
        if any(keeper.is_open() for keeper in self._kept_by):
            return not self.lost
        if not self._finish() or self._foreign:
            return False
        client, hold = self._client, self._hold
        if self._entry is not None and self._is_inner():
            return not hold.is_over(now())
        try:
            return (yield from holding.release(client._queue, hold, silent=silent))
        finally:  # after the release: somebody may be waiting for that
            self._given_back()

    def _given_back(self) -> None:
        hold = self._hold
        self._client._watchdog.unwatch(hold)
        self._client.note_hold(hold.name, now() - hold.granted)

    def _ends_by(self, error: type[BaseException] | None) -> None:
        """Called before the release at the end of a block. ``error``: the one that leaves it."""

    @property
    def _overdue(self) -> bool:
        """Like ``lost``, but not final: if the store can be asked, its answer decides."""
        return bool(self._hold.dead) or now() >= self._hold.deadline

    def _left(
        self, kept: bool | LockError, error: type[BaseException] | None, was_lost: bool
    ) -> None:
        """Called after the release at the end of a block. Raises LeaseLost if the body succeeded,
        but the lease was lost. ``kept``: the release's result, or its error, which is only logged.
        """
        if isinstance(kept, LockError):
            log.warning("release of %r not confirmed: %s", self.name, kept)
            kept = not was_lost
        if not kept and error is None:
            raise self._hold.loss(now())

    def _is_inner(self) -> bool:
        """Whether other leases go on sharing the claim. Called once, when this one is released."""
        if self._entry is None or self._client._entries.leave(self._entry):
            return False
        (self._hold.on_lost or {}).pop(id(self), None)
        return True

    def _tell_when_lost(self, on_lost: Callable[[Any], object] | None) -> None:
        """Have ``on_lost`` called at a loss. Each lease that shares a claim has its own."""
        if on_lost is None:
            return
        hold = self._hold
        if hold.on_lost is None:
            hold.on_lost = {}
        hold.on_lost[id(self)] = partial(_tell, weakref.ref(self), on_lost)

    def _finish(self) -> bool:
        """Mark the lease as released. Returns whether this is the first time."""
        first = not self.released
        self.released = True
        return first


def _tell(reference: weakref.ref[BaseLease], on_lost: Callable[[Any], object]) -> object:
    """Call ``on_lost`` with the lease, unless it is released or nothing refers to it any more."""
    lease = reference()
    return None if lease is None or lease.released else on_lost(lease)


def give_back(lease: Lease | MultiLease, release: Callable[[], bool] | None = None) -> None:
    """Release a lease after the work under it is done. Errors of the store are only logged, because
    the work stands.

    The caller has checked the lease at the last moment at which the work could be undone.
    ``release`` does it, if not the method of that name.
    """
    result_of(give_back_async(lease, release))


async def give_back_async(
    lease: Lease | MultiLease | AsyncLease | AsyncMultiLease,
    release: Callable[[], bool] | None = None,
) -> None:
    """Like ``give_back``, also for leases of asyncio."""
    if lease.released:
        return
    try:
        kept = await value((release or lease.release)())
    except holding.UNTOLD as error:
        log.warning("release of %r not confirmed: %s", lease.name, error)
    else:
        if not kept:
            log.warning("the lease on %r was lost before its release", lease.name)


async def value(found: T | Awaitable[T]) -> T:
    """The value itself, or the result of awaiting it: code for blocking and asyncio clients."""
    if hasattr(type(found), "__await__"):  # quicker than isinstance(found, Awaitable)
        return await found  # type: ignore[misc,no-any-return]
    return found  # type: ignore[return-value]


def result_of(doing: Coroutine[Any, Any, R]) -> R:
    """The result of a coroutine that awaits nothing, because its calls block."""
    try:
        doing.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise TypeError("this coroutine runs without an event loop, so it must not wait for anything")
