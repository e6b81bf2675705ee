"""A store whose steps only say what was asked: for flows that are played by hand."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from lockkit.engine.effects import Step, at_once
from lockkit.model.types import Busy, Request

__all__ = ["Asked", "AskingStore", "Attempt", "Extend", "Free", "Wait", "Why", "Withdraw"]


class Attempt(NamedTuple):
    request: Request


class Wait(NamedTuple):
    request: Request
    seconds: float
    busy: Busy


class Free(NamedTuple):
    request: Request


class Withdraw(NamedTuple):
    request: Request


class Extend(NamedTuple):
    requests: Sequence[Request]


class Why(NamedTuple):
    name: str
    fence: int | None


Asked = Attempt | Wait | Free | Withdraw | Extend | Why
Asking = Generator[Asked, Any, Any]


class AskingStore:
    def server_of(self, _name: str) -> None:
        """There is one."""

    def acquire(self, request: Request) -> Asking:
        return (yield Attempt(request))

    def listen(self, _request: Request) -> Step[bool]:
        return at_once(False)

    def wait(self, request: Request, seconds: float, busy: Busy) -> Asking:
        return (yield Wait(request, seconds, busy))

    def release(self, request: Request) -> Asking:
        return (yield Withdraw(request) if request.queued else Free(request))

    def extend(self, requests: Sequence[Request]) -> Asking:
        return (yield Extend(requests))

    renew = extend

    def ended(self, name: str, fence: int | None) -> Asking:
        return (yield Why(name, fence))
