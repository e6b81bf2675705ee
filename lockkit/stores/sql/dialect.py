"""What differs between databases: the statements. They are read from one .sql file for each."""

from __future__ import annotations

import functools
import re
from dataclasses import MISSING, dataclass, fields
from importlib import resources

from lockkit.stores.sql.codec import WHOLE

_STATEMENT = re.compile(r"^-- name: (\w+)\n(.*?)(?=^-- name:|\Z)", re.DOTALL | re.MULTILINE)

MOST = str(WHOLE - 1)
"""The greatest number of ours. What else stands there is told, and never run over."""


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
    page: str  #: of all rows; of another prefix only whether somebody uses it
    stale: str
    delete: str
    put: str
    prefixes: str
    take: str = ""  #: takes a free name for a moment of the clock's, which is its fence
    free: str = ""  #: frees it while it is as it was taken, if its lease has not expired
    tell: str = ""  #: as ``update``, and tells waiters on their channels, if it can
    hear: str = ""  #: has messages come over this connection
    prove: str = ""  #: sends one that only its sender hears


@functools.cache
def load_dialect(name: str) -> Dialect:
    """The dialect in ``<name>.sql``, which must name exactly the statements of Dialect."""
    text = resources.files(__package__).joinpath(f"{name}.sql").read_text("utf-8")
    statements = {match[1]: match[2].strip() for match in _STATEMENT.finditer(text)}
    clock = statements["clock"].removeprefix("SELECT ")
    for key, statement in statements.items():
        statements[key] = statement.replace("{clock}", clock).replace("{most}", MOST)
    required = {field.name for field in fields(Dialect) if field.default is MISSING}
    assert statements.keys() >= required - {"name"}
    return Dialect(name, **statements)


@functools.cache
def expanded(statement: str, count: int) -> str:
    """The statement with ``:ids`` as a list of ``count`` parameters, ``:id0`` and so on."""
    return statement.replace(":ids", ", ".join(f":id{i}" for i in range(count)))
