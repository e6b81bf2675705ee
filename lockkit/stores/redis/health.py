"""What is dangerous about a server's configuration, as far as its user may ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from redis.exceptions import ResponseError

from lockkit.model.errors import BackendError
from lockkit.stores.base import Danger
from lockkit.stores.redis.protocol import pack

__all__ = ["capacity", "eviction", "persistence", "server"]

Ask = Callable[[bytes], Any]


def eviction(ask: Ask) -> Iterator[Danger]:
    """An evicting server loses locks under memory pressure."""
    policy = _info(ask, b"memory", "maxmemory_policy")
    if policy is None:
        yield Danger(
            "eviction",
            "whether the Redis server evicts keys when memory is full is not known: this user may "
            "not ask it (INFO)",
            "Allow the user +info; or look whether maxmemory-policy is noeviction, and silence "
            "this check.",
        )
    elif policy not in {"noeviction", ""}:
        yield Danger(
            "eviction",
            "the Redis server evicts keys when memory is full "
            f"(maxmemory-policy {policy}): it would lose locks",
            "Set maxmemory-policy to noeviction, or use another server.",
        )


def capacity(ask: Ask) -> Iterator[Danger]:
    """Records fill a server's memory. One that may not be asked is told of by ``eviction``."""
    policy, most = _info(ask, b"memory", "maxmemory_policy"), _info(ask, b"memory", "maxmemory")
    if policy not in {None, "noeviction", ""}:
        yield Danger(
            "capacity",
            "records of orders fill the memory of the Redis server that keeps locks, too, and it "
            f"evicts keys then (maxmemory-policy {policy}): it forgets records, and locks",
            _OF_THEIR_OWN,
        )
    elif most not in {None, "0", ""}:
        yield Danger(
            "capacity",
            "records of orders fill the memory of the Redis server that keeps locks, too, and it "
            f"is bounded (maxmemory {most}): when it is full, no lock is granted",
            _OF_THEIR_OWN,
        )


_OF_THEIR_OWN = (
    "Keep the records in a Redis of their own: another lock alias for it, named in "
    "LOCKKIT_ORDERS['ALIAS'] and used for nothing else."
)


def server(ask: Ask) -> str | None:
    """What tells this server from any other; None if the user may not ask."""
    return _info(ask, b"server", "run_id")


def persistence(ask: Ask) -> Iterator[Danger]:
    """A server that writes nothing to a disk has forgotten all records after a restart."""
    appends = _info(ask, b"persistence", "aof_enabled")
    if appends == "1":
        return
    saves = _allowed(ask, pack(b"CONFIG", b"GET", b"save"))
    if appends is None or saves is None:
        yield Danger(
            "persistence",
            "whether the Redis server persists anything is not known: this user may not ask it "
            "(INFO, CONFIG GET)",
            "Allow the user +info +config|get; or look whether appendonly is yes, and silence "
            "this check.",
        )
    elif not saves[1]:
        yield Danger(
            "persistence",
            "the Redis server persists nothing (appendonly no, save empty): after a restart it "
            "knows no record",
            "Set appendonly to yes, or use another server.",
        )


def _info(ask: Ask, section: bytes, wanted: str) -> str | None:
    """A line of INFO; empty if the server has none such, None if the user may not ask."""
    reply = _allowed(ask, pack(b"INFO", section))
    if reply is None:
        return None
    lines = bytes(reply).decode(errors="replace").splitlines()
    return dict(line.partition(":")[::2] for line in lines).get(wanted, "")


def _allowed(ask: Ask, packed: bytes) -> Any:
    """The reply; None if the server does not answer that to this user, or to nobody."""
    try:
        return ask(packed)
    except BackendError as error:
        if isinstance(error.__cause__, ResponseError):
            return None
        raise
