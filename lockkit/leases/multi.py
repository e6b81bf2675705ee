"""Several names at once: all of them, or none.

The locks are acquired one after the other, by everybody in the same order (that of the names' UTF-8
bytes). So two callers that give them in opposite orders do not wait for each other for ever. Limit:
this needs callers that acquire all their names through one ``multi``. A holder of one lock that
asks for more can deadlock, until a timeout or MAX_HOLD ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from lockkit.engine.effects import Step
from lockkit.engine.holding import UNTOLD, Silent
from lockkit.leases.blocks import TaskLease, TaskLock, ThreadLease, ThreadLock
from lockkit.leases.lease import BaseLease
from lockkit.leases.statements import Block
from lockkit.model.checks import check_timeout
from lockkit.model.clock import now
from lockkit.model.errors import AcquireTimeout, ConfigurationError, LeaseLost
from lockkit.model.log import log
from lockkit.model.types import UNSET, LeaseState, Unset

if TYPE_CHECKING:
    from lockkit.leases.aio_client import AsyncLease, AsyncLock, AsyncLockClient
    from lockkit.leases.client import Lease, Lock, LockClient

AnyLease = TypeVar("AnyLease", "Lease", "AsyncLease")

LEAST = 0.001
"""Seconds to wait for a name if those before it took all the time: 0 would mean not to wait."""


class _MultiLease(Generic[AnyLease]):
    """The leases of all names, as one. Local: reading it costs no round trip."""

    def __init__(self, client: Any, leases: Sequence[AnyLease]) -> None:
        self._client = client
        self._leases: dict[str, AnyLease] = {lease.name: lease for lease in leases}

    def __getitem__(self, name: str) -> AnyLease:
        """The lease on one of the names, with its ``fencing_token``."""
        return self._leases[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._leases)

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._leases)

    @property
    def name(self) -> str:
        """All names in one text, for people."""
        return ", ".join(self._leases)

    @property
    def fencing_token(self) -> NoReturn:
        """Raises ConfigurationError: each name has a token of its own."""
        name = self.names[0]
        raise ConfigurationError(
            f"a lease on several names has a token for each: fence with one, as leases[{name!r}]"
        )

    @property
    def shared(self) -> bool:
        """Whether others may hold one of the names at the same time."""
        return any(lease.shared for lease in self._leases.values())

    @property
    def released(self) -> bool:
        return all(lease.released for lease in self._leases.values())

    @property
    def lost(self) -> bool:
        """Whether one of the leases can no longer be relied on. Final."""
        return any(lease.lost for lease in self._leases.values())

    @property
    def state(self) -> LeaseState:
        """``LOST`` if one of the leases is, else ``UNKNOWN`` if one is, else ``HELD``."""
        states = {lease.state for lease in self._leases.values()}
        worst = (LeaseState.LOST, LeaseState.UNKNOWN, LeaseState.HELD)
        return next(state for state in worst if state in states)

    def remaining(self) -> float:
        """Seconds for which all can be relied on if no renewal succeeds."""
        return min(lease.remaining() for lease in self._leases.values())

    def check(self) -> None:
        """Raise LeaseLost if one of the leases can no longer be relied on; the error names it."""
        for lease in self._leases.values():
            lease.check()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(map(repr, self._leases))}>"

    def _belong_to(self, block: Block | None) -> None:
        for lease in self._leases.values():
            lease._block = block

    def _extending(self, ttl: float | None) -> Step[None]:
        for lease in self._leases.values():
            yield from lease._extending(ttl)

    def _releasing(self) -> Step[bool]:
        return releasing_all([*self._leases.values()])

    def _leaving(self, error: type[BaseException] | None) -> Step[None]:
        """Release at the end of a block those leases that its body has not released. Raises
        LeaseLost if the body succeeded, but one of them was lost."""
        ours: list[BaseLease] = [each for each in self._leases.values() if not each.released]
        for lease in ours:
            lease._ends_by(error)
        overdue: list[BaseLease] = [each for each in ours if each._overdue]
        kept, failed, failure = yield from _releasing_each(ours)
        if isinstance(failure, UNTOLD):
            log.warning("release of %r not confirmed: %s", failure.name, failure)
        elif failure is not None:
            raise failure
        # For the others, the store has answered, and its answer decides.
        lost: list[BaseLease] = [each for each in overdue if each in failed]
        if error is None and (lost or not kept):
            raise _loss([*lost, *ours])


class MultiLease(_MultiLease["Lease"], ThreadLease):
    """The leases of ``client.multi``. An error has the name of the lease that failed; ``release``
    returns True if all of them were still held."""

    def _end(self, error: type[BaseException] | None) -> None:
        self._client.perform(self._leaving(error))


class AsyncMultiLease(_MultiLease["AsyncLease"], TaskLease):
    """Like ``MultiLease``, but awaited."""

    async def _end(self, error: type[BaseException] | None) -> None:
        self._client._stay_in_loop(releases=True)
        await self._client.perform(self._leaving(error))


def releasing_all(leases: Sequence[BaseLease]) -> Step[bool]:
    """Release each, the last one first, even if some fail. Then raise the gravest error."""
    kept, _, failure = yield from _releasing_each(leases)
    if failure is not None:
        raise failure
    return kept


def _releasing_each(
    leases: Sequence[BaseLease],
) -> Step[tuple[bool, list[BaseLease], BaseException | None]]:
    """Returns whether all that could be released were still held; those whose release failed; and
    the gravest error. A server that does not answer is asked once."""
    left, kept = [*leases], True
    silent: Silent = set()
    failed: list[BaseLease] = []
    failure: BaseException | None = None
    unbegun: BaseLease | None = None
    while left:
        try:
            while left:  # an interrupt may come between two releases, or before one begins
                kept = (yield from left[-1]._releasing(silent)) and kept
                left.pop()
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001  the gravest is raised below
            failure = _graver(failure, error)
            last = left[-1] if left else None
            if last is not None and (
                last.released or last is unbegun
            ):  # this release has begun, or failed twice to begin
                failed.append(left.pop())
            unbegun = last
    return kept, failed, failure


def _graver(one: BaseException | None, other: BaseException) -> BaseException:
    """The first error, unless another is an interrupt: a failing store must not hide that."""
    is_graver = isinstance(one, Exception) and not isinstance(other, Exception)
    return other if one is None or is_graver else one


def _loss(leases: Sequence[BaseLease]) -> LeaseLost:
    """The LeaseLost of the first lease that is known to be lost; if none is, of the first one."""
    found = next((lease for lease in leases if lease._hold.dead), leases[0])
    return found._hold.loss(now())


Several = TypeVar("Several", MultiLease, AsyncMultiLease)


class _MultiLock(Generic[Several]):
    """A claim on several names. Holds nothing itself."""

    def __init__(self, client: Any, locks: Sequence[Any]) -> None:
        self._client = client
        self._locks = locks
        self._timeout: float | None = locks[0].timeout
        self._entered: dict[int, list[Several]] = {}

    def _acquiring(
        self, timeout: float | None | Unset, made: Callable[..., Several]
    ) -> Step[Several]:
        wait = self._timeout if timeout is UNSET else check_timeout("timeout", timeout)
        start = now()
        kept = [lock._kept() for lock in self._locks]
        leases: list[BaseLease] = []
        try:
            for lock in self._locks:
                left = wait and max(start + wait - now(), LEAST)
                lease = yield from lock._acquiring(left)
                leases.append(lease)
            several = made(self._client, leases)
            several.check()  # one may have ended while a later one was waited for
            return several
        except GeneratorExit:  # nothing can be awaited any more: what it has is not renewed
            raise
        except BaseException as error:  # also if interrupted: all or none
            yield from _giving_back([lease for lease in leases if lease not in kept])
            if isinstance(error, AcquireTimeout):
                error.waited = now() - start
            raise


def _giving_back(leases: Sequence[BaseLease]) -> Step[None]:
    for lease in leases:
        lease._disown()
    try:
        yield from releasing_all(leases)
    except UNTOLD as failure:
        log.warning("release of %r not confirmed: %s", failure.name, failure)


class MultiLock(ThreadLock[MultiLease], _MultiLock[MultiLease]):
    """A claim on several names, made by ``client.multi``. Holds nothing itself."""

    _client: LockClient
    _locks: Sequence[Lock]

    def acquire(self, timeout: float | None | Unset = UNSET) -> MultiLease:
        """Wait for all names, for ``timeout`` seconds in all. Raises as ``Lock.acquire`` does, and
        LeaseLost if one is lost while this waits for another: then none of them is held, and the
        error has the name that was not granted, or was lost."""
        return self._client.perform(self._acquiring(timeout, MultiLease))


class AsyncMultiLock(TaskLock[AsyncMultiLease], _MultiLock[AsyncMultiLease]):
    """Like ``MultiLock``, but awaited."""

    _client: AsyncLockClient
    _locks: Sequence[AsyncLock]

    async def acquire(
        self,
        timeout: float | None | Unset = UNSET,  # noqa: ASYNC109  (it leaves the store's queue)
    ) -> AsyncMultiLease:
        """As ``MultiLock.acquire``; if it is cancelled, none is held."""
        self._client._stay_in_loop()
        for lock in self._locks:
            await lock._allow()
        return await self._client.perform(self._acquiring(timeout, AsyncMultiLease))
