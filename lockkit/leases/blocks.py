"""``with`` and ``ExitStack``: how locks and leases begin and end such a block.

See ``statements`` for where the lease is kept meanwhile, and how a block is noticed that has ended
without ``__exit__``.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

from lockkit.engine.effects import Step
from lockkit.engine.holding import UNTOLD
from lockkit.leases.statements import Block, begun, entering, leaving
from lockkit.model.errors import AcquireTimeout, TooManySessions
from lockkit.model.log import log
from lockkit.model.types import UNSET, Unset

if TYPE_CHECKING:
    from lockkit.leases.aio_client import AsyncLockClient
    from lockkit.leases.client import LockClient


class _Entered(Protocol):
    """A lease on one name, or on several."""

    @property
    def name(self) -> str: ...
    @property
    def released(self) -> bool: ...
    def check(self) -> None: ...
    def _belong_to(self, block: Block | None) -> None: ...
    def _releasing(self) -> Step[bool]: ...
    def _extending(self, ttl: float | None) -> Step[None]: ...


class _ByThread(_Entered, Protocol):
    def _end(self, error: type[BaseException] | None) -> None: ...


class _ByTask(_Entered, Protocol):
    async def _end(self, error: type[BaseException] | None) -> None: ...


L = TypeVar("L", bound=_Entered)
T = TypeVar("T", bound=_ByThread)
A = TypeVar("A", bound=_ByTask)

if TYPE_CHECKING:
    _ThreadLease = _ByThread
    _TaskLease = _ByTask
else:
    _ThreadLease = _TaskLease = object


class ThreadLock(Generic[T]):
    """The ``with`` statement and ``try_acquire`` of a lock on one name, or on several."""

    __slots__ = ()
    _client: LockClient
    _entered: dict[int, list[T]]

    if TYPE_CHECKING:

        def acquire(self, timeout: float | None | Unset = UNSET) -> T: ...

    def try_acquire(self) -> T | None:
        """The lease, or None if somebody else has the lock. Every other failure raises."""
        try:
            return self.acquire(timeout=0)
        except TooManySessions:
            raise  # perhaps nobody has it
        except AcquireTimeout:
            return None

    @entering
    def __enter__(self, *, by_class: bool = False) -> T:
        block = begun(self, by_class=by_class)
        lease = self.acquire()
        try:
            return _enter(self._entered, threading.get_ident(), lease, block)
        except BaseException:  # interrupted: ``__exit__`` will not be called
            _unenter(self._entered, threading.get_ident(), lease)
            self._client.perform(giving_up(lease))
            raise

    @leaving
    def __exit__(
        self, kind: type[BaseException] | None, *_: object, lease: list[T] | None = None
    ) -> None:
        found = lease.pop() if lease else _leave(self._entered, threading.get_ident())
        found._end(kind)


class TaskLock(Generic[A]):
    """Like ``ThreadLock``, but awaited."""

    __slots__ = ()
    _client: AsyncLockClient
    _entered: dict[int, list[A]]

    if TYPE_CHECKING:

        async def acquire(self, timeout: float | None | Unset = UNSET) -> A: ...  # noqa: ASYNC109

    async def try_acquire(self) -> A | None:
        """The lease, or None if somebody else has the lock. Every other failure raises."""
        try:
            return await self.acquire(timeout=0)
        except TooManySessions:
            raise  # perhaps nobody has it
        except AcquireTimeout:
            return None

    @entering
    async def __aenter__(self, *, by_class: bool = False) -> A:
        block = begun(self, by_class=by_class)
        lease = await self.acquire()
        try:
            return _enter(self._entered, _task(), lease, block)
        except BaseException:  # interrupted: ``__aexit__`` will not be called
            _unenter(self._entered, _task(), lease)
            await self._client.perform(giving_up(lease))
            raise

    @leaving
    async def __aexit__(
        self, kind: type[BaseException] | None, *_: object, lease: list[A] | None = None
    ) -> None:
        found = lease.pop() if lease else _leave(self._entered, _task())
        try:
            await self._client._await_left_over(kind)
        finally:
            await found._end(kind)


class ThreadLease(_ThreadLease):
    """``extend``, ``release`` and the ``with`` statement of a lease on one name, or on several."""

    __slots__ = ()
    _client: LockClient

    def extend(self, ttl: float | None = None) -> None:
        """Set the remaining time to ``ttl`` seconds (default: the lock's ttl), even after MAX_HOLD.

        Renewal goes on until MAX_HOLD. It keeps at least the lock's ttl, and never shortens the
        remaining time. Raises LeaseLost, a BackendError, or ConfigurationError for a wrong ``ttl``.
        """
        self._client.perform(self._extending(ttl))

    def release(self) -> bool:
        """Release the lease. Returns False if it was lost, or was released before.

        Raises a BackendError, LayoutMismatch or MissingTable if the store cannot be told now. Then
        it is told later in the background, or the lease expires. With ``until="commit"`` the end of
        the transaction releases the lease.
        """
        return self._client.perform(self._releasing())

    def __enter__(self) -> Self:
        """Raises LeaseLost if the lease has been released."""
        block = begun(self)
        if self.released:
            self.check()
        self._belong_to(block)
        return self

    @leaving
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Release. Raises LeaseLost if the body succeeded, but the lease was lost."""
        self._end(kind)


class TaskLease(_TaskLease):
    """Like ``ThreadLease``, but awaited."""

    __slots__ = ()
    _client: AsyncLockClient

    async def extend(self, ttl: float | None = None) -> None:
        """As ``Lease.extend``, in the event loop of the client."""
        self._client._stay_in_loop()
        await self._client.perform(self._extending(ttl))

    async def release(self) -> bool:
        """As ``Lease.release``, in the event loop of the client, or after its end."""
        self._client._stay_in_loop(releases=True)
        return await self._client.perform(self._releasing())

    async def __aenter__(self) -> Self:
        """As ``Lease.__enter__``."""
        block = begun(self)
        if self.released:
            self.check()
        self._belong_to(block)
        return self

    @leaving
    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Release. Raises LeaseLost if the body succeeded, but the lease was lost."""
        try:
            await self._client._await_left_over(kind)
        finally:
            await self._end(kind)


def giving_up(lease: _Entered) -> Step[None]:
    """Release a lease that its caller will not get because of an error or an interrupt. That is
    raised next, so an error of the store is only logged."""
    try:
        yield from lease._releasing()
    except UNTOLD as error:
        log.warning("release of %r not confirmed: %s", lease.name, error)


def _task() -> int:
    """A key for the current task. If a task runs, asyncio is imported already."""
    import asyncio

    return id(asyncio.current_task())


def _enter(entered: dict[int, list[L]], who: int, lease: L, block: Block | None) -> L:
    """Keep the lease for ``__exit__``: in the statement's object; without one, in ``entered``."""
    lease._belong_to(block)
    statement = None if block is None else block()
    if statement is None:
        entered.setdefault(who, []).append(lease)
    else:
        statement.keywords["lease"] = [lease]
    return lease


def _unenter(entered: dict[int, list[L]], who: int, lease: L) -> None:
    """Undo ``_enter`` after an interrupt in it, or just before it."""
    leases = entered.get(who, [])
    if lease in leases:
        leases.remove(lease)
    if not leases:
        entered.pop(who, None)


def _leave(entered: dict[int, list[L]], who: int) -> L:
    """The lease that this thread or task has entered last by a call of ``__enter__``. If it has
    entered none, that of the only thread or task that has: two threads of a pool may make the two
    calls. Raises RuntimeError if there is not just one.
    """
    if who not in entered:
        if len(entered) != 1:
            raise RuntimeError(
                f"this thread or task leaves a lock that {len(entered) or 'no'} others have "
                "entered: make a lock for each, or use `lease = lock.acquire()` and release it"
            )
        who = next(iter(entered))
    lease = entered[who].pop()
    if not entered[who]:
        del entered[who]
    return lease
