"""Dangers in the settings of aliases and in their stores, for the adapters' checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from lockkit.model.errors import BackendError, ConfigurationError, DriverMissing, StoreRefused
from lockkit.model.types import Finding
from lockkit.stores.contract import HostLocal, Store
from lockkit.stores.registry import load_store

if TYPE_CHECKING:
    from lockkit.leases.client import LockClient
    from lockkit.model.settings import AliasSettings

SHORTEST_TTL = 2.0
"""Seconds: below it one pause of the garbage collector or the network loses a lease."""

LONGEST_TTL = 300.0
"""Seconds: above it, a killed process keeps its locks from everybody for too long."""


def setting_findings(aliases: Iterable[AliasSettings], *, debug: bool) -> Iterator[Finding]:
    """Does no I/O. ``debug``: a store within one process or machine is fine."""
    for entry in aliases:
        try:
            store = load_store(entry)
        except ConfigurationError as error:
            correct = "Install that, or change" if isinstance(error, DriverMissing) else "Correct"
            remedy = f"{correct} LOCKKIT[{entry.alias!r}], or LOCKKIT_URL."
            yield Finding("no-store", str(error), remedy)
            continue
        if not debug:
            yield from _reach(entry, store)
        yield from _durations(entry)
        if store.is_relative():
            yield _relative(entry)


def refuse_within_process(client: LockClient) -> None:
    """Raise ConfigurationError if other processes do not share the client's store."""
    if client.store.is_within_process():
        settings = client.settings
        raise ConfigurationError(
            f"{settings.shown_location} (lock alias {settings.alias!r}) is within one process, so "
            "this would exclude nobody: use a store that processes share, such as redis://"
        )


def store_findings(client: LockClient) -> Iterator[Finding]:
    """Whether the store answers, and whether it is set up to keep its data. Does I/O."""
    alias = f"lock alias {client.settings.alias!r}"
    try:
        client.perform(client.store.check())
        dangers = client.perform(client.store.health())
    except (BackendError, ConfigurationError) as error:
        is_down = isinstance(error, BackendError)
        if isinstance(error, StoreRefused):
            remedy = "Correct LOCKKIT, or the rights of its user"
        else:
            remedy = "Start it, or correct LOCKKIT" if is_down else "Do what it says"
        yield Finding(
            "store-fails",
            f"The store of the {alias} ({client.settings.shown_location}) fails: {error}",
            f"{remedy}. Until then, views that lock answer {503 if is_down else 500}.",
        )
        return
    for danger in dangers:
        yield Finding("store-danger", f"The {alias}: {danger.text}", danger.remedy)


def _reach(entry: AliasSettings, store: Store) -> Iterator[Finding]:
    alias = f"The lock alias {entry.alias!r} ({entry.shown_location})"
    if store.is_within_process():
        yield Finding(
            "within-process",
            f"{alias} holds within one process only: the workers of a server do not exclude one "
            f"another",
            "Use a store that all processes share, such as redis://, or a database.",
        )
    elif isinstance(store, HostLocal):
        yield Finding(
            "within-host",
            f"{alias} holds on one machine only",
            "With a second machine, use a server: redis://, or a database server.",
        )


def _relative(entry: AliasSettings) -> Finding:
    return Finding(
        "relative-path",
        f"The lock alias {entry.alias!r} has a relative path ({entry.shown_location}): processes "
        f"that start in different directories lock in different files, and do not exclude one "
        f"another",
        "Give the absolute path. A URL then has four slashes, as sqlite:////var/lib/locks has.",
    )


def _durations(entry: AliasSettings) -> Iterator[Finding]:
    alias = f"The lock alias {entry.alias!r} has"
    if entry.max_hold is None:
        yield Finding(
            "unlimited-hold",
            f"{alias} MAX_HOLD None: a holder that hangs keeps its lock for as long as its "
            f"process lives",
            "Set MAX_HOLD to more seconds than the longest honest work takes.",
        )
    if entry.ttl < SHORTEST_TTL:
        yield Finding(
            "short-ttl",
            f"{alias} TTL {entry.ttl:g}: a short pause of the process or the network loses a lease",
            f"Set TTL to {SHORTEST_TTL:g} seconds or more; 30 is the default.",
        )
    elif entry.ttl > LONGEST_TTL:
        yield Finding(
            "long-ttl",
            f"{alias} TTL {entry.ttl:g}: what a killed process held stays locked for that many "
            f"seconds",
            "Leases are renewed while they are held: TTL need not cover the longest work.",
        )
