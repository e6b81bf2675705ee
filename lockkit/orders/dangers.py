"""Dangers of the store of the records of orders, with STORE "redis"."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from lockkit.model.errors import BackendError, ConfigurationError
from lockkit.model.settings import DEFAULT_ALIAS
from lockkit.model.types import Finding

if TYPE_CHECKING:
    from lockkit.leases.client import LockClient


def dangers(
    alias: str, aliases: Iterable[str], client: Callable[[str], LockClient]
) -> Iterator[Finding]:
    """Dangers to the records, which are in the store of ``alias``, and to locks on that server.

    ``client`` returns the client of any of the ``aliases``. Does I/O. Raises BackendError and
    ConfigurationError, but passes over other aliases that are wrong or whose store fails.
    """
    locks = client(alias)
    records = locks.store.records()
    if records is None:
        return
    for danger in locks.perform(records.health()):
        yield _of_orders(danger, "record-danger", ". A repeated order may run again")
    others = [each for each in aliases if each != alias]
    server = locks.perform(records.server())
    if alias == DEFAULT_ALIAS or any(_is_on(server, client, each) for each in others):
        for danger in locks.perform(records.capacity()):
            yield _of_orders(danger, "record-capacity")


def _of_orders(danger: Finding, code: str, consequence: str = "") -> Finding:
    text = f"LOCKKIT_ORDERS['STORE'] is 'redis': {danger.text}{consequence}"
    return Finding(code, text, danger.remedy)


def _is_on(server: str | None, client: Callable[[str], LockClient], alias: str) -> bool:
    """Whether an alias has its locks on this server, even under another address."""
    try:
        locks = client(alias)
        records = locks.store.records()
        if records is None or server is None:
            return False
        return locks.perform(records.server()) == server
    except (BackendError, ConfigurationError):
        return False
