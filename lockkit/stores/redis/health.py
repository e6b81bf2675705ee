"""Dangers in a server's configuration, as far as its user may ask for it."""

from __future__ import annotations

from typing import Any

from redis.exceptions import ResponseError

from lockkit.engine.effects import Step
from lockkit.model.errors import BackendError
from lockkit.model.types import Finding
from lockkit.stores.redis.protocol import pack
from lockkit.stores.redis.scripts import look


def eviction() -> Step[list[Finding]]:
    """An evicting server loses locks under memory pressure."""
    policy = yield from _info(b"memory", "maxmemory_policy")
    if policy is None:
        return [
            Finding(
                "eviction",
                "it is not known whether the Redis server evicts keys when memory is full: this "
                "user may not ask it (INFO)",
                "Allow the user +info; or look yourself whether maxmemory-policy is noeviction.",
            )
        ]
    if policy not in {"noeviction", ""}:
        return [
            Finding(
                "eviction",
                "the Redis server evicts keys when memory is full "
                f"(maxmemory-policy {policy}): it would lose locks",
                "Set maxmemory-policy to noeviction, or use another server.",
            )
        ]
    return []


def isolation() -> Step[list[Finding]]:
    """A master that is cut off goes on granting, while another one is made master."""
    replicas = yield from _info(b"replication", "min_slaves_good_slaves")
    if replicas != "":
        return []
    return [
        Finding(
            "isolation",
            "the Redis server takes writes without a replica (min-replicas-to-write 0): cut off "
            "from its Sentinels, it grants locks that the new master grants as well",
            "Set min-replicas-to-write to 1 or more, and min-replicas-max-lag to a few seconds.",
        )
    ]


def role() -> Step[list[Finding]]:
    """Each new connection asks the server for its role, and goes on if the user may not ask."""
    if (yield from _allowed(pack(b"ROLE"))) is not None:
        return []
    return [
        Finding(
            "role",
            "it is not checked whether the server is the master: this user may not ask it (ROLE)",
            "Allow the user +role: Sentinels may not have heard of a fail-over yet.",
        )
    ]


def of_master() -> Step[list[Finding]]:
    """Dangers of a server that Sentinels name."""
    found = yield from eviction()
    found += yield from isolation()
    return found + (yield from role())


def capacity() -> Step[list[Finding]]:
    """Records fill a server's memory. If the user may not ask, ``eviction`` says so."""
    policy = yield from _info(b"memory", "maxmemory_policy")
    most = yield from _info(b"memory", "maxmemory")
    if policy not in {None, "noeviction", ""}:
        danger = (
            "; when it is full, the server evicts keys "
            f"(maxmemory-policy {policy}): records, and locks"
        )
    elif most not in {None, "0", ""}:
        danger = f", and it is bounded (maxmemory {most}): when it is full, no lock is granted"
    else:
        return []
    return [
        Finding(
            "capacity",
            "records of orders fill the memory of the Redis server that also keeps locks" + danger,
            "Keep the records in a Redis of their own: another lock alias for it, named in "
            "LOCKKIT_ORDERS['ALIAS'] and used for nothing else.",
        )
    ]


def server() -> Step[str | None]:
    """An identity that no other server has; None if the user may not ask."""
    return _info(b"server", "run_id")


def persistence() -> Step[list[Finding]]:
    """A server that writes nothing to a disk forgets all records in a restart."""
    appends = yield from _info(b"persistence", "aof_enabled")
    if appends == "1":
        return []
    saves = yield from _allowed(pack(b"CONFIG", b"GET", b"save"))
    if appends is None or saves is None:
        return [
            Finding(
                "persistence",
                "it is not known whether the Redis server persists anything: this user may not ask "
                "it (INFO, CONFIG GET)",
                "Allow the user +info +config|get; or look yourself whether appendonly is yes.",
            )
        ]
    if not saves[1]:
        return [
            Finding(
                "persistence",
                "the Redis server persists nothing (appendonly no, save empty): a restart loses "
                "all records",
                "Set appendonly to yes, or use another server.",
            )
        ]
    return []


def forgetting() -> Step[list[Finding]]:
    """A node of Redlock that votes right after a restart must not have forgotten a vote."""
    appends = yield from _info(b"persistence", "aof_enabled")
    syncs = yield from _allowed(pack(b"CONFIG", b"GET", b"appendfsync"))
    if appends == "1" and syncs is not None and syncs[1] == b"always":
        return []
    if appends is None or (appends == "1" and syncs is None):
        return [
            Finding(
                "persistence",
                "restart_delay is 0, and it is not known whether the Redis server writes each vote "
                "to disk before it answers: this user may not ask it (INFO, CONFIG GET)",
                "Allow the user +info +config|get; or look yourself whether appendonly is yes and "
                "appendfsync is always.",
            )
        ]
    return [
        Finding(
            "persistence",
            "restart_delay is 0, and a restart of the Redis server may lose votes (it has not both "
            "appendonly yes and appendfsync always): a second holder could get a lock",
            "Set both, or leave restart_delay at its default.",
        )
    ]


def _info(section: bytes, wanted: str) -> Step[str | None]:
    """A value of INFO; empty if the server has no such line, None if the user may not ask."""
    reply = yield from _allowed(pack(b"INFO", section))
    if reply is None:
        return None
    lines = bytes(reply).decode(errors="replace").splitlines()
    return dict(line.partition(":")[::2] for line in lines).get(wanted, "")


def _allowed(packed: bytes) -> Step[Any]:
    """The reply; None if the server does not answer this to this user, or to anybody."""
    try:
        return (yield from look(packed))
    except BackendError as error:
        if isinstance(error.__cause__, ResponseError):
            return None
        raise
