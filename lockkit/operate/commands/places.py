"""Where was looked: the store, its database and the key prefix, and what else is there.

A prefix or a database that is misspelt holds nothing: that must not read as an all-clear.
"""

from __future__ import annotations

from typing import Any

from lockkit.leases.client import LockClient
from lockkit.model.errors import LockError

__all__ = ["about", "others", "place"]

SHOWN = 10
"""Prefixes."""


def place(client: LockClient) -> str:
    """``redis://127.0.0.1:6379/0 (database 0), key prefix 'shop'``; without passwords."""
    where, database = client.settings.shown_location, client.backend.database()
    if database not in where:
        where = f"{where} ({database})"
    return f"{where}, key prefix {client.settings.key_prefix!r}"


def others(client: LockClient) -> str:
    """What was not looked at there, as the end of a sentence; or nothing."""
    text = ""
    if found := prefixes(client):
        names = [f"{name!r}{' (has locks)' * has}" for name, has in list(found.items())[:SHOWN]]
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        text = f"; other key prefixes there: {', '.join(names)}{more}"
    if client.backend.capabilities.process_local:
        text += "; memory:// is within one process: locks of other processes cannot be seen"
    return text


def prefixes(client: LockClient) -> dict[str, bool]:
    """The other prefixes, those with locks first; none where the store does not tell."""
    try:
        found = client.backend.prefixes()
    except LockError:
        return {}
    return dict(sorted(found.items(), key=lambda pair: (not pair[1], pair[0])))


def about(client: LockClient, *, nothing: bool) -> dict[str, Any]:
    """For JSON. What else is there is asked only where nothing was found."""
    return {
        "location": client.settings.shown_location,
        "database": client.backend.database(),
        "key_prefix": client.settings.key_prefix,
        "other_prefixes": prefixes(client) if nothing else None,
    }
