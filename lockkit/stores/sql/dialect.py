"""The statements for the table, read from .sql files: one for all databases, and one for each."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from importlib import resources

from lockkit.stores.sql.codec import WHOLE

_STATEMENT = re.compile(r"^-- name: (\w+)\n(.*?)(?=^-- name:|\Z)", re.DOTALL | re.MULTILINE)

MOST = str(WHOLE - 1)
"""The greatest number that lockkit writes. A row with a greater one counts as damaged: no claim
takes, frees or changes it."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The statements of one database, with ``:named`` parameters. In the files, ``{clock}`` stands
    for the database's clock and ``{most}`` for MOST. Most rows that are read begin with the clock.
    """

    name: str
    create: str
    clock: str
    read: str
    read_many: str
    insert: str
    update: str
    page: str  #: rows of all prefixes; of another one's state, only the first character
    stale: str
    delete: str
    mend: str  #: frees a row with a version that is not ours; nothing else changes such a row
    put: str
    prefixes: str
    take: str  #: takes a free name; the clock's time becomes its fence
    free: str  #: frees a name if nothing changed since, and the lease has not expired
    tell: str = ""  #: like ``update``, and sends messages; empty: no statement can
    hear: str = ""  #: subscribes this connection to a channel
    prove: str = ""  #: sends a message to a channel


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
def repeated(statement: str, count: int) -> str:
    """The statement for ``count`` rows instead of one: its parameters get the numbers from 0."""
    change, _, condition = statement.partition(" WHERE ")
    conditions = (re.sub(r"(:\w+)", rf"\g<1>{i}", condition) for i in range(count))
    return f"{change} WHERE {' OR '.join(conditions)}"


@functools.cache
def expanded(statement: str, count: int) -> str:
    """The statement with ``:ids`` as a list of ``count`` parameters, ``:id0`` and so on."""
    return statement.replace(":ids", ", ".join(f":id{i}" for i in range(count)))
