"""What differs between databases: the statements. They are read from one .sql file for each."""

from __future__ import annotations

import functools
import re
from dataclasses import MISSING, dataclass, fields
from importlib import resources

_STATEMENT = re.compile(r"^-- name: (\w+)\n(.*?)(?=^-- name:|\Z)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Dialect:
    """The statements of one database, with ``:named`` parameters. Rows start with the clock."""

    name: str
    create: str
    clock: str
    read: str
    read_many: str
    insert: str
    update: str
    page: str
    stale: str
    delete: str
    put: str
    prefixes: str
    tell: str = ""  #: as ``update``, and tells waiters on their channels, if it can
    hear: str = ""  #: has messages come over this connection
    prove: str = ""  #: sends one that only its sender hears


@functools.cache
def load_dialect(name: str) -> Dialect:
    """The dialect in ``<name>.sql``, which must name exactly the statements of Dialect."""
    text = resources.files(__package__).joinpath(f"{name}.sql").read_text("utf-8")
    statements = {match[1]: match[2].strip() for match in _STATEMENT.finditer(text)}
    required = {field.name for field in fields(Dialect) if field.default is MISSING}
    assert statements.keys() >= required - {"name"}
    return Dialect(name, **statements)


@functools.cache
def expanded(statement: str, count: int) -> str:
    """The statement with ``:ids`` as a list of ``count`` parameters, ``:id0`` and so on."""
    return statement.replace(":ids", ", ".join(f":id{i}" for i in range(count)))
