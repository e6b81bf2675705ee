"""Which stores can do what another one refuses."""

from __future__ import annotations

from typing import Any

from lockkit.stores.contract import Fenced, Listed, Reentrant, Shared

_TABLES = "and, without the option mode, postgresql://, mysql://, mariadb:// and django://"
_OF_MUTEXES = f"memory://, sqlite://, redis://, zookeeper://, {_TABLES}"
_OF_ALL_KINDS = f"memory://, sqlite://, redis:// without protocol=plain, {_TABLES}"

ABLE: dict[type[Any], str] = {
    Fenced: _OF_MUTEXES,
    Listed: _OF_MUTEXES,
    Reentrant: _OF_ALL_KINDS,
    Shared: _OF_ALL_KINDS,
}
"""For the texts of errors: by trait, the stores that have it."""
