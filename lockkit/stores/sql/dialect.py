"""The statements for the table, read from .sql files: one for all databases, and one for each."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from importlib import resources

from lockkit.stores.sql.codec import WHOLE

_STATEMENT = re.compile(r"^-- name: (\w+)\n(.*?)(?=^-- name:|\Z)", re.DOTALL | re.MULTILINE)

MOST = str(WHOLE - 1)
"""The greatest number of ours. A row with a greater one is reported, and never overwritten."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The statements of one database, with ``:named`` parameters. Rows start with the clock, and
    ``{clock}`` stands for it, ``{most}`` for MOST."""

    name: str
    create: str
    clock: str
    read: str
    read_many: str
    insert: str
    update: str
    page: str  #: of all rows; for another prefix, its state tells only whether it is free
    stale: str
    delete: str
    put: str
    prefixes: str
    take: str  #: takes a free name; the moment of the clock is its fence
    free: str  #: frees it if nothing has changed since, and the lease has not expired
    tell: str = ""  #: like ``update``, and tells waiters on their channels, if it can
    hear: str = ""  #: has messages come over this connection
    prove: str = ""  #: sends one that only its sender hears


@functools.cache
def load_dialect(name: str) -> Dialect:
    """The dialect of a database. ``<name>.sql`` overrides ``table.sql``."""
    files = resources.files(__package__)
    texts = [files.joinpath(f"{file}.sql").read_text("utf-8") for file in ("table", name)]
    statements = {m[1]: m[2].strip() for text in texts for m in _STATEMENT.finditer(text)}
    clock = statements["clock"].removeprefix("SELECT ")
    for key, statement in statements.items():
        statements[key] = statement.replace("{clock}", clock).replace("{most}", MOST)
    return Dialect(name, **statements)


@functools.cache
def expanded(statement: str, count: int) -> str:
    """The statement with ``:ids`` as a list of ``count`` parameters, ``:id0`` and so on."""
    return statement.replace(":ids", ", ".join(f":id{i}" for i in range(count)))
