"""Steps for every use of a Redis server: run scripts, and send requests that only read. Also the
protocol of the scripts for a claim."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from redis.exceptions import NoScriptError

from lockkit.engine.effects import Exchange, Step
from lockkit.model.errors import OutcomeUnknown
from lockkit.model.types import Request
from lockkit.stores.redis.failures import Apart, from_reply
from lockkit.stores.redis.protocol import Command, load_scripts


class Language(Protocol):
    """What the steps of one claim say to the server, as packed scripts."""

    def channel(self, instance: str) -> bytes: ...

    def acquire(self, request: Request, mode: int, channel: bytes) -> Command: ...

    def release(self, request: Request) -> Command: ...

    def extend(self, requests: Sequence[Request]) -> Iterator[tuple[Command, list[int]]]: ...


def call(command: Command) -> Step[Any]:
    """Run a script; load it first if the server does not have it."""
    try:
        return (yield Exchange(command.packed))
    except NoScriptError:
        return (yield from _load_and_run([command]))[0]


def call_all(
    commands: Sequence[Command], then: bytes = b"", kind: type[list[bytes]] = list
) -> Step[list[Any]]:
    """Run several scripts in one exchange. ``then``: one more request, whose reply comes last.
    ``kind``: Apart, if the error of one is to be its reply."""
    if not commands:
        return []
    try:
        packed = [command.packed for command in commands]
        replies: list[Any] = yield Exchange(kind([*packed, then] if then else packed))
    except NoScriptError:
        replies = yield from _load_and_run(commands, then, kind)
    return replies


def _load_and_run(
    commands: Sequence[Command], then: bytes = b"", kind: type[list[bytes]] = list
) -> Step[list[Any]]:
    """Load and run in one exchange: there is hardly time to flush the scripts in between, even if
    somebody does so again and again."""
    try:
        loads = load_scripts(commands)
        packed = [*loads, *(command.packed for command in commands)]
        payload = kind([*packed, then] if then else packed)
        if isinstance(payload, Apart):
            payload.together = len(loads)
        replies: list[Any] = yield Exchange(payload)
    except NoScriptError as error:
        raise from_reply(error) from error
    return replies[len(loads) :]


def look(packed: bytes | list[bytes]) -> Step[Any]:
    """A request that only reads. It is sent once more if no reply came: a connection may be stale.

    A single request is sent as a list, too.
    """
    several = packed if isinstance(packed, list) else [packed]
    try:
        replies = yield Exchange(several)
    except OutcomeUnknown:
        replies = yield Exchange(several)
    return replies if several is packed else replies[0]


def look_by_script(command: Command) -> Step[Any]:
    """A script that may be run twice. It is sent once more if no reply came: see ``look``."""
    try:
        return (yield from call_all([command]))[0]
    except OutcomeUnknown:
        return (yield from call_all([command]))[0]
