"""A table whose database sends messages."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from lockkit.engine import grant
from lockkit.engine.effects import Exchange, Step
from lockkit.engine.times import alive_for
from lockkit.model.types import Busy, Gone, Grant, Release, Request
from lockkit.stores.contract import Pushed
from lockkit.stores.sql.codec import token_digest
from lockkit.stores.sql.inbox import Inbox
from lockkit.stores.sql.rules import pause
from lockkit.stores.sql.store import SQLStore

ROUNDING: Final = 1e-5
"""Seconds: moments in the table are whole microseconds."""


class PushedTable(SQLStore, Pushed):
    """A client that hands a name over sends a message on the channel of the next holder. Nothing
    else sends messages: in PostgreSQL, commits with messages wait for one another."""

    inbox_type: ClassVar[type[Inbox]] = Inbox

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._inbox = self.inbox_type(self.connector, self._prove)

    def answered(self, request: Request, reply: Grant | Busy | Gone) -> Grant | Busy | Gone:
        if not isinstance(reply, Busy) or reply.full:
            self._forget(request)
        return reply

    def unanswered(self, request: Request, error: BaseException) -> BaseException:
        """The claim no longer waits for a message. If it does later, it asks the table first."""
        self._forget(request)
        return error

    def _forget(self, request: Request) -> None:
        if self._inbox.is_awaited:
            self._inbox.forget(token_digest(request.token))

    def wait(self, request: Request, seconds: float, busy: Busy) -> Step[Grant | None]:
        token = token_digest(request.token)
        granted = yield from self._inbox.wait(token, seconds, pause(seconds, busy), busy.ticket)
        if granted is None or granted.left > alive_for(request.ttl) + ROUNDING:
            return None  # it is not from lockkit: no handoff is for longer
        self._inbox.forget(token)
        return granted

    def returned(self, request: Request) -> Exchange:
        """The claim no longer waits, even if the server never gets this request."""
        if request.queued:
            self._forget(request)
        return super().returned(request)

    def taken_back(self, request: Request, reply: Release) -> Release:
        """Forget the claim once more: a poll of it may have been under way."""
        if request.queued:
            self._forget(request)
        return reply

    def close(self) -> None:
        self._inbox.close()
        super().close()

    def _decide(
        self, mine: Request, state: grant.State, now: int
    ) -> grant.Outcome[Grant | Busy | Gone]:
        outcome = super()._decide(mine, state, now)
        if (waiter := state.waiting(mine.token)) is not None:
            self._inbox.seen(mine.token, now)
            if outcome.changed:
                waiter.channel = self._inbox.channel
        return outcome

    def _prove(self, channel: str) -> None:
        self._rows(self._dialect.prove, {"channel": channel})
