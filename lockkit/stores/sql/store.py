"""The grant rule over one row per name: read the row, decide, and write it if it has not changed.

Guarantee: a grant is one statement, an INSERT of a new row, or an UPDATE that applies only if the
row is still as the decision assumes. So no two grants are decided from the same state. The clock is
the database's. Limit: as with all leases, only a fencing token stops a holder paused past its TTL.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from lockkit.engine import grant
from lockkit.engine.effects import Exchange, Park, Signal, Step
from lockkit.engine.last_words import Words, last_words
from lockkit.model import clock
from lockkit.model.errors import BackendError, BackendUnavailable, DamagedRecord, LayoutMismatch
from lockkit.model.types import Busy, Gone, Grant, LockInfo, Mode, Release, Renewal, Request
from lockkit.runtime.wires import Call, CallWire, Lane, call
from lockkit.stores.contract import Buried, Direct, Durable, Fenced, Queued, Reentrant, Shared
from lockkit.stores.sql.codec import encode, row_id
from lockkit.stores.sql.connector import Connection, Connector, Missed, OneConnection, Parameters
from lockkit.stores.sql.dialect import expanded
from lockkit.stores.sql.listing import TableListing
from lockkit.stores.sql.rows import (
    PRUNE_EVERY,
    First,
    Row,
    free,
    prune_some,
    repaired,
    state_of,
    take,
)
from lockkit.stores.sql.rules import extended, messages, pause, stored, taken_over
from lockkit.stores.sql.words import values_of
from lockkit.stores.wires import AsyncWire

T = TypeVar("T")
Rule = Callable[[grant.State, int], grant.Outcome[T]]

BUSY_SECONDS = 5.0
"""Seconds for which a step is tried again while others write. Then it raises BackendUnavailable."""

FIRST_PAUSE, LONGEST_PAUSE = 0.0002, 0.02
"""Seconds between two tries of a step. The second try comes at once, because the writer in its way
has usually finished. After it: FIRST_PAUSE, doubled each time, up to LONGEST_PAUSE."""

READ_AT_ONCE = 100
"""The most rows that a renewal reads in one statement: few change before it writes them."""


class Applied(NamedTuple, Generic[T]):
    """The outcome of a rule."""

    reply: T
    is_new: bool  #: the name had no row before
    state: grant.State


class SQLStore(TableListing, Direct, Queued, Fenced, Shared, Reentrant, Buried, Durable):
    """Locks in a table, through a connector. Thread-safe and fork-safe.

    Renewals use a connection of their own. ``busy_seconds``: see BUSY_SECONDS, the default.
    """

    def __init__(
        self,
        connector: Connector,
        *,
        key_prefix: str,
        busy_seconds: float = BUSY_SECONDS,
        takes_over: bool = False,
    ) -> None:
        """``takes_over``: the leases of a process that is known to be gone are free at once."""
        self.connector = connector
        self._takes_over = takes_over
        self._prefix = key_prefix
        self._busy_seconds = busy_seconds
        self._steps = OneConnection(connector)
        self._renewals = OneConnection(connector)
        self._refused: tuple[str, ...] = ()  #: names whose renewal failed, latest first: tried last

    def wire(self) -> CallWire:
        return CallWire(self.close)

    def async_wire(self, *, is_shared: bool = False) -> AsyncWire:
        from lockkit.runtime.aio_wires import ThreadWire

        return ThreadWire((lambda: None) if is_shared else self.close)

    def acquire(self, request: Request) -> Step[Grant | Busy | Gone]:
        try:
            reply: Grant | Busy | Gone = yield self.asked(request)
        except BaseException as error:
            self.unanswered(request, error)
            raise
        self.answered(request, reply)
        return reply

    def asked(self, request: Request) -> Exchange:
        first = None if request.mode is Mode.POLL else partial(take, request)
        decide = partial(self._decide, stored(request))
        work = partial(self._step, request.name, decide, None, first)
        return Exchange(Call(work), request.token)

    def _decide(
        self, mine: Request, state: grant.State, now: int
    ) -> grant.Outcome[Grant | Busy | Gone]:
        return (taken_over if self._takes_over else grant.acquire)(state, mine, now)

    def release(self, request: Request) -> Step[Release]:
        return self.taken_back(request, (yield self.returned(request)))

    def returned(self, request: Request) -> Exchange:
        def rule(state: grant.State, now: int) -> grant.Outcome[Release]:
            return grant.release(state, stored(request), now)

        as_taken = not (request.queued or request.unsure or request.mode is Mode.POLL)
        first = partial(free, request) if as_taken else None
        work = partial(self._step, request.name, rule, None, first)
        return Exchange(Call(work, Lane.ENDING), request.token)

    def extend(self, requests: Sequence[Request]) -> Step[list[Renewal]]:
        return call(lambda: self._extend_all(requests), Lane.RENEWING)

    def wait(self, request: Request, seconds: float, busy: Busy) -> Step[Grant | None]:
        """A table sends no messages: sleep for a while, then ask again."""
        yield Park(Signal(), pause(seconds, busy))
        return None

    def break_(self, name: str, fence: int, by: str = "") -> Step[bool]:
        def rule(state: grant.State, now: int) -> grant.Outcome[bool]:
            return grant.break_(state, fence, now, by)

        return call(lambda: self._step(name, rule))

    def repair(self, name: str, by: str = "", shown: LockInfo | None = None) -> Step[bool]:
        repairing = partial(repaired, row_id(self._prefix, name), name, by)
        return call(lambda: self._note(self._try(self._steps, repairing), self._steps))

    def close(self) -> None:
        self._steps.close()
        self._renewals.close()
        self.connector.forget()

    def _extend_all(self, requests: Sequence[Request]) -> list[Renewal]:
        """Read many rows in one statement, and write each row in a statement of its own.

        Never in a transaction: a process that is paused within one would hold up everybody. If the
        store fails on the way, the leases that it has extended before stay extended.
        """
        names: dict[str, list[Request]] = {}
        for request in map(stored, requests):
            names.setdefault(request.name, []).append(request)
        told: dict[str, list[Renewal]] = {}
        try:
            self._extend_each(names, told)
        except BackendError as error:
            if all(renewal.error for renewals in told.values() for renewal in renewals):
                raise
            rest = [Renewal(None, error)] * len(requests)
            told = {name: told.get(name, rest) for name in names}
        answers = {name: iter(renewals) for name, renewals in told.items()}
        return [next(answers[request.name]) for request in requests]

    def _step(
        self,
        name: str,
        rule: Rule[T],
        over: OneConnection | None = None,
        first: First[T] | None = None,
    ) -> T:
        """Apply the rule to the name's state, as one atomic change. ``first``: tried before, saves
        the read if the name is in the one state that it expects."""
        row, over = row_id(self._prefix, name), over or self._steps
        done = self._try(over, partial(self._attempt, row, name, rule, first))
        if not isinstance(done, Applied):
            return done
        reply, is_new, state = done
        self._note(last_words(name, state), over)
        if is_new and int(row[-4:], 16) % PRUNE_EVERY == 0:
            with suppress(Missed, BackendError):  # the step is done; another one will prune
                self._steps.use(prune_some)
        return reply

    def _note(self, found: Sequence[Words], over: OneConnection) -> bool:
        """Write down the last of these, after the step; the process may die before. False: none."""
        if found:
            values = values_of(self._prefix, found[-1])
            with suppress(BackendError):
                self._try(over, lambda c: c.execute(c.dialect.put, values))
        return bool(found)

    def _attempt(
        self, row: str, name: str, rule: Rule[T], first: First[T] | None, connection: Connection
    ) -> T | Applied[T]:
        """Try ``first``, then read the row and apply the rule. Raises Missed like ``_apply``."""
        found = None
        if first is not None:
            reply, found = first(connection, row)
            if reply is not None:
                return reply
        found = found or connection.execute(connection.dialect.read, {"id": row}).rows[0]
        return self._apply(connection, row, name, found, rule)

    def _apply(
        self, connection: Connection, row: str, name: str, found: Row, rule: Rule[T]
    ) -> Applied[T]:
        """Apply the rule to the row, and write it. Raises Missed if it has changed meanwhile."""
        now, version, *_ = found
        dialect = connection.dialect
        state = state_of(found)
        waiters = {waiter.token: waiter for waiter in state.queue if waiter.channel}
        outcome = rule(state, now)
        if not outcome.changed:
            return Applied(outcome.reply, False, state)
        state.prune(now)
        values = {"id": row, "fence": state.fence, "state": encode(state), "now": now}
        told = messages(outcome.handoffs, waiters, now)
        if version is None:
            statement = dialect.insert
            values |= {"prefix": self._prefix, "name": name}
        else:
            statement = (told and dialect.tell) or dialect.update
            values |= {"version": version, "told": json.dumps(told)}
        if not connection.execute(statement, values).changed:
            raise Missed
        for message, channel in () if dialect.tell else told.items():
            self.connector.tell(channel, message.partition(" ")[0])
        return Applied(outcome.reply, version is None, state)

    def _extend(
        self, name: str, requests: Sequence[Request], rows: dict[str, Row]
    ) -> list[Renewal]:
        """Extend from the row that was read. If it has changed since, read it again."""
        row = row_id(self._prefix, name)
        if row not in rows:
            return [Renewal(None)] * len(requests)
        rule = partial(extended, requests)
        try:
            reply, _, state = self._renewals.use(
                lambda c: self._apply(c, row, name, rows[row], rule)
            )
        except Missed:
            return self._step(name, rule, self._renewals)
        self._note(last_words(name, state), self._renewals)
        return reply

    def _extend_each(self, names: dict[str, list[Request]], told: dict[str, list[Renewal]]) -> None:
        """A row that cannot be read does not keep the others from being renewed, nor does one other
        failure (a locked row). After a second one, or the only row's, the rest are given up."""
        failed = len(names) == 1
        ordered = sorted(names, key=lambda name: -(*self._refused, name).index(name))
        for start in range(0, len(ordered), READ_AT_ONCE):
            batch = ordered[start : start + READ_AT_ONCE]
            rows = self._read_many({row_id(self._prefix, name) for name in batch})
            for name in batch:
                try:
                    told[name] = self._extend(name, names[name], rows)
                except (LayoutMismatch, BackendError) as error:
                    told[name] = [Renewal(None, error)] * len(names[name])
                    if isinstance(error, LayoutMismatch | DamagedRecord):
                        continue
                    self._refused = (name, *(n for n in self._refused if n != name))[:READ_AT_ONCE]
                    if failed:
                        raise
                    failed = True

    def _read_many(self, ids: set[str]) -> dict[str, Row]:
        statement = expanded(self._dialect.read_many, len(ids))
        values = {f"id{i}": row for i, row in enumerate(ids)}
        found = self._try(self._renewals, lambda c: c.execute(statement, values)).rows
        return {row: (now, version, fence, state) for now, row, version, fence, state in found}

    def _rows(self, statement: str, values: Parameters) -> Sequence[Sequence[Any]]:
        if not self.connector.has_anything():
            return ()
        return self._try(self._steps, lambda c: c.execute(statement, values)).rows

    def _try(self, over: OneConnection, step: Callable[[Connection], T]) -> T:
        """Try a step again while somebody else is faster or the store is busy."""
        pause, end = 0.0, None
        while True:
            try:
                return over.use(step)
            except Missed as missed:
                end = end or clock.now() + self._busy_seconds
                if clock.now() >= end:
                    busy = f"the lock database was busy for more than {self._busy_seconds:g} s"
                    raise BackendUnavailable(busy) from missed.__cause__
            if pause:
                time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(max(pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
