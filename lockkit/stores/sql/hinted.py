"""A table in a file, whose waiters are woken by hints: see ``hints``.

A hint grants nothing: the table decides. So it may come late, twice, from anybody, or never.
"""

from __future__ import annotations

import math
import os
from typing import Final

from lockkit.engine import grant
from lockkit.model.clock import now
from lockkit.model.types import Busy, Gone, Grant, Mode, Owner, Request
from lockkit.runtime import process
from lockkit.stores.sql.inbox import Inbox
from lockkit.stores.sql.pushed import PushedTable

FEW: Final = 10
"""This number of hints fits into a socket on every system. If as many come at once, others may have
been dropped."""

DOUBT: Final = 60.0
"""Seconds for which waiters poll after a hint should have come and did not."""


class HintInbox(Inbox):
    """Like the inbox for a server's messages. But a hint is sure to come only from a process in the
    same machine and container, and only if that process is not killed before it sends."""

    def _reset(self) -> None:
        super()._reset()
        self._ahead: dict[str, frozenset[int]] = {}  #: by token: processes; no entry: it polls
        self._hinted: set[str] = set()  #: tokens of claims that were woken and have not asked yet
        self._doubted = -math.inf

    def follow(self, state: grant.State, token: str, moment: int) -> None:
        """Note the processes that must go before this claim can be granted, if all of them can send
        hints."""
        self._hinted.discard(token)
        ahead = [holder.owner for holder in state.holders if holder.until > moment]
        for waiter in state.queue:
            if waiter.token == token:
                break
            ahead.append(waiter.owner)
        processes = processes_here(ahead)
        if processes is None:
            self._ahead.pop(token, None)
        else:
            self._ahead[token] = processes

    def found(self, token: str) -> None:
        """The claim was granted while it slept. If no hint came, a process ahead of it may be
        unable or not allowed to send any: waiters poll for a while."""
        if self.is_open and token in self._ahead and token not in self._hinted:
            self._doubted = now()

    def forget(self, token: str) -> None:
        super().forget(token)
        self._ahead.pop(token, None)
        self._hinted.discard(token)

    def work(self) -> float:
        self._wake_heirs()
        return super().work()

    def _wake_heirs(self) -> None:
        """Wake claims with a dead process ahead: that can tell nobody, and its lease is free."""
        ahead = list(self._ahead.items())
        gone = {pid for pid in set[int]().union(*(pids for _, pids in ahead)) if is_gone(pid)}
        for token, processes in ahead if gone else ():
            if processes & gone:
                self._ahead.pop(token, None)
                self._rouse(token)

    def _sleep(self, token: str, seconds: float, pause: float) -> float:
        if token in self._ahead and now() - self._doubted > DOUBT:
            return super()._sleep(token, seconds, pause)
        return pause

    def _heed(self, messages: list[str]) -> None:
        tokens = [message.partition(" ")[0] for message in messages]  # the rest grants nothing
        self._hinted.update(self._ahead.keys() & tokens)
        super()._heed(tokens)
        if len(messages) >= FEW:
            self._have_all_ask()

    def _have_all_ask(self) -> None:
        self._hinted.update(self._ahead.copy())
        super()._have_all_ask()


def processes_here(owners: list[str]) -> frozenset[int] | None:
    """The processes of these owners, without this process. None: one of them may be on another
    machine or in another container."""
    found = set()
    for text in owners:
        owner = Owner.decode(text)
        if not process.is_here(owner) or owner.pid <= 0:
            return None
        found.add(owner.pid)
    return frozenset(found - {os.getpid()})


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


class HintedTable(PushedTable):
    """A process that hands a name over sends a hint, once that is committed."""

    inbox_type = HintInbox
    _inbox: HintInbox

    def _decide(
        self, mine: Request, state: grant.State, now: int
    ) -> grant.Outcome[Grant | Busy | Gone]:
        if mine.mode is Mode.POLL and state.holding(mine.token) is not None:
            self._inbox.found(mine.token)
        outcome = super()._decide(mine, state, now)
        if isinstance(outcome.reply, Busy) and outcome.reply.ticket:
            self._inbox.follow(state, mine.token, now)
        return outcome

    def _prove(self, channel: str) -> None:
        self.connector.tell(channel, "")
