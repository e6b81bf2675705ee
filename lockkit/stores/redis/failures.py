"""redis-py's errors as lockkit's: what was certainly not applied, and what may have been."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import redis.exceptions as driver

from lockkit.model.errors import (
    BackendError,
    BackendUnavailable,
    LockError,
    OutcomeUnknown,
    StoreRefused,
)
from lockkit.stores.redis.replies import script_error
from lockkit.stores.servers import tls_remedy

E = TypeVar("E", bound=BaseException)

REFUSALS = {
    "READONLY": "the server is a read-only replica: point the URL at the primary",
    "LOADING": "the server is still loading its data",
    "BUSY": "the server is running a long script",
    "OOM": "the server is out of memory: raise maxmemory (and keep maxmemory-policy noeviction)",
    "MISCONF": "the server refuses writes because it cannot persist",
    "MASTERDOWN": "the replica has lost its primary",
    "NOREPLICAS": "the server has too few replicas (min-replicas-to-write)",
    "NOAUTH": "the server wants a password: put it into the URL, as in redis://:password@host, or "
    "into OPTIONS['password'], or into the client that was handed over",
    "WRONGPASS": "the server refuses the user or the password",
    "NOPERM": "the user lacks a permission lockkit needs (docs/redis.md has an ACL line)",
    "DB": "the server has no database of the number in the URL",
    "CLUSTERDOWN": "the cluster is down",
    "MOVED": "this is a server of a Redis Cluster: its URL begins with redis+cluster://",
    "ASK": "this is a server of a Redis Cluster: its URL begins with redis+cluster://",
    "NOSCRIPT": "the server forgets scripts as fast as they are loaded",
    "TRYAGAIN": "the cluster is moving slots",
}

CODES = {
    driver.ReadOnlyError: "READONLY",
    driver.MasterDownError: "MASTERDOWN",
    driver.BusyLoadingError: "LOADING",
    driver.NoPermissionError: "NOPERM",
    driver.OutOfMemoryError: "OOM",
    driver.NoScriptError: "NOSCRIPT",
    driver.MovedError: "MOVED",
    driver.AskError: "ASK",  # MovedError is a subclass of it
    driver.TryAgainError: "TRYAGAIN",
    driver.ClusterDownError: "CLUSTERDOWN",
}
"""The code that redis-py strips from the message of an error, by the class of the error."""

KINDS = {code: kind for kind, code in CODES.items()} | dict.fromkeys(
    ("NOAUTH", "WRONGPASS"), driver.AuthenticationError
)

SENTINEL = "; is it a Sentinel? Then the URL begins with redis+sentinel://"

FOR_GOOD = frozenset({"NOAUTH", "WRONGPASS", "NOPERM", "DB", "MOVED", "ASK"})
"""Refusals that do not pass by themselves."""

DEMOTED = "READONLY", "NOREPLICAS", "MASTERDOWN"
"""Codes of a server that is no longer the master, or is cut off from its replicas."""

BEFORE_7 = re.compile(r"^Error running script .*@user_script: \d+: -(?=[A-Z]+ )")
"""What Redis 6.2 puts in front of the error of a command in a script."""

NO_PASSWORD = (
    "Authentication required",
    "unauthenticated",
    "HELLO must be called with the client already authenticated",
)
"""How servers say NOAUTH, where redis-py strips the code or there is none."""

REFUSED_WITHIN = "user executing the script can't", "ACL failure in script"
"""How Redis, before and since 7.2, refuses a command within a script. What the script did before
the refusal stays."""


class MasterUnknown(driver.ConnectionError):
    """The Sentinels lead to no master. The text has no secret."""


SAID = (driver.ResponseError, driver.AuthenticationError, driver.BusyLoadingError)
"""Errors that are replies of the server."""


ALL_IN_USE = "No connection available.", "Too many connections"
"""The texts of pools that wait for a connection, and of pools in older releases of redis-py."""

FULL = "max number of clients reached"


def not_connected(error: Exception, at: Mapping[str, Any]) -> BackendError:
    """The error of a connection that could not be made, so nothing was applied. ``at``: the
    arguments of the connection, which may contain the password."""
    if isinstance(error, driver.MaxConnectionsError) or str(error) in ALL_IN_USE:
        return BackendUnavailable("all connections of the pool are in use: raise max_connections")
    if isinstance(error, MasterUnknown):
        return BackendUnavailable(str(error))
    if isinstance(error, SAID):
        found = _refused(message_of(error))
        kind = StoreRefused if isinstance(found, StoreRefused) else BackendUnavailable
        return kind(f"{_address(at)}{found}")
    return BackendUnavailable(f"{_address(at)}the Redis server cannot be reached: {_reason(error)}")


def _address(at: Mapping[str, Any]) -> str:
    """``127.0.0.1:6379: ``, or nothing: a client that was handed over may hide it."""
    if at.get("host"):
        return f"{at['host']}:{at.get('port', 6379)}: "
    return f"{at['path']}: " if at.get("path") else ""


def _reason(error: BaseException | None) -> str:
    """The operating system's words; neither address nor password."""
    while error is not None:
        if FULL in str(error):
            return f"{FULL}: raise its maxclients"
        if isinstance(error, (TimeoutError, driver.TimeoutError)) and "handshake" in str(error):
            return "no answer to TLS in time (is it a port without TLS?)"
        if isinstance(error, ConnectionResetError) and not error.strerror:  # asyncio's
            return "it hangs up at once: is it full (maxclients)?"
        if isinstance(error, OSError) and error.strerror:
            return f"{error.strerror}{tls_remedy(error.strerror)}"
        error = error.__cause__ or error.__context__
    return "no answer in time, or none that a Redis server gives"


def check_role(reply: Any) -> None:
    """Raise MasterUnknown unless this reply to ROLE, of a server that Sentinels call the master, is
    a master's."""
    if reply[0] != b"master":
        raise MasterUnknown("Sentinels name a server that is not the master: a change is under way")


def is_demoted(reply: Any) -> bool:
    """Whether a reply is the error of a server that may have been the master until now. A new
    connection leads to the new master."""
    replies = reply if isinstance(reply, list) else [reply]
    errors = (one for one in replies if isinstance(one, driver.ResponseError))
    return any(message_of(error).startswith(DEMOTED) for error in errors)


def lost_on_the_way(error: Exception) -> BackendError:
    """The error of a request that was sent, or partly sent, and got no reply."""
    if isinstance(error, (driver.TimeoutError, TimeoutError)):
        return OutcomeUnknown("the Redis server did not reply in time")
    return OutcomeUnknown("the connection to the Redis server broke before its reply")


def from_reply(error: driver.RedisError) -> LockError:
    """The error for an error reply of the server."""
    message = message_of(error)
    return script_error(message) or _refused(message)


def checked(reply: Any) -> Any:
    """The reply, unless it is an error. Raises lockkit's errors, or NoScriptError, which says that
    the script was not run."""
    if isinstance(reply, driver.ResponseError):
        if isinstance(reply, driver.NoScriptError):
            raise driver.NoScriptError(*reply.args)  # another: see ``engine.effects``
        raise from_reply(reply) from reply
    return reply


class Apart(list[bytes]):
    """Requests of which each may be refused alone. Its reply is then lockkit's error."""

    together = 0  #: the number of those at the beginning for which that is not so


def all_checked(payload: object, replies: Sequence[Any]) -> list[Any]:
    """As ``checked``, for the replies to a payload."""
    first = payload.together if isinstance(payload, Apart) else len(replies)
    return [*map(checked, replies[:first]), *map(_checked_apart, replies[first:])]


def _checked_apart(reply: Any) -> Any:
    try:
        return checked(reply)
    except LockError as error:
        if not is_of_one(error):
            raise
        return error.with_traceback(None)


def anew(error: E) -> E:
    """A copy of the error, so that each waiter raises one of its own."""
    made = type(error)(*error.args)
    made.__cause__ = error.__cause__
    return made


def bare(error: E) -> E:
    """A copy of the error to keep: without its frames, and all that these refer to."""
    made = anew(error)
    cause: BaseException | None = made
    while cause is not None:
        cause.__traceback__ = None
        cause = cause.__cause__ or cause.__context__
    return made


def refused(error: LockError) -> bool:
    """Whether the server replied with an error: another request may succeed."""
    return isinstance(error.__cause__, driver.ResponseError)


def is_of_one(error: LockError) -> bool:
    """Whether only this request was refused; others may succeed."""
    return refused(error) and not is_demoted(error.__cause__)


def forbids(error: LockError, command: str) -> bool:
    """Whether the user may not run this command."""
    cause = error.__cause__
    return isinstance(cause, driver.NoPermissionError) and f"'{command}'" in str(cause).lower()


def message_of(error: Exception) -> str:
    """The message as the server sent it: see CODES."""
    text = BEFORE_7.sub("", str(error))
    code = next((code for kind, code in CODES.items() if isinstance(error, kind)), "")
    return text if text.startswith(code) else f"{code} {text}"


def as_of_redis(error: driver.RedisError, *, is_managed: bool) -> driver.RedisError:
    """The error that redis-py raises for this reply. ``is_managed``: a new connection leads to the
    master that Sentinels name, so redis-py says that the connection is lost."""
    if type(error) is not driver.ResponseError:
        return error
    code, _, text = message_of(error).partition(" ")
    if code == "READONLY" and is_managed:
        return driver.ConnectionError("The previous master is now a slave")
    return KINDS[code](text) if code in KINDS else error


def _refused(message: str) -> BackendError:
    code = message.partition(" ")[0]
    if code in REFUSALS:
        kind = StoreRefused if code in FOR_GOOD else BackendUnavailable
        return kind(f"{REFUSALS[code]} ({code})")
    if any(words in message for words in NO_PASSWORD):
        return StoreRefused(f"{REFUSALS['NOAUTH']} (NOAUTH)")
    if "authentication" in message.lower() or "password" in message.lower():
        return StoreRefused(REFUSALS["WRONGPASS"])
    if "cluster support disabled" in message:
        return StoreRefused("the server is not in a cluster: its URL begins with redis://")
    hint = SENTINEL if message.startswith("unknown command") else ""
    if any(words in message for words in REFUSED_WITHIN):
        code, hint = "NOPERM", f": {REFUSALS['NOPERM']}"
    return OutcomeUnknown(f"the Redis server replied with an error ({code[:40]}){hint}")
