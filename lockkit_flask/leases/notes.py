"""The texts of statements, for databases that do not tell whether a transaction has written."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableMapping

    from sqlalchemy import RootTransaction

_LOCKS = re.compile(r"(?i)\bfor\s+(no\s+key\s+)?(update|(key\s+)?share)\b|\bshare\s+mode\b")

MOST = 10_000_000
"""Characters of a transaction's texts. If there would be more, "" alone is kept, which counts as a
change."""

_noted: MutableMapping[RootTransaction, dict[str, int]] = WeakKeyDictionary()
"""Of each transaction: its texts, each once, with their length so far."""


def note(transaction: RootTransaction | None, sql: str) -> None:
    """None: a statement of its BEGIN."""
    if transaction is None:
        return
    said = _noted.setdefault(transaction, {})
    if sql not in said:
        said[sql] = so_far = len(sql) + next(reversed(said.values()), 0)
        if so_far > MOST:
            _noted[transaction] = {"": MOST}


def noted_in(transaction: RootTransaction | None) -> Iterable[str]:
    return () if transaction is None else _noted.get(transaction, ())


def locks_rows(sql: str) -> bool:
    """Whether a statement has locked rows that it has read."""
    return _LOCKS.search(sql) is not None
