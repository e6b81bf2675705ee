"""Last words in the table: rows with a prefix that no alias can have, one row for each slot.

They are written after the step that found the loss: if the process dies in between, they are not.
See ``engine.last_words``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any

from lockkit.engine.last_words import SLOTS, Words, last_words, slot_of, words_info
from lockkit.engine.state import Holder
from lockkit.model.errors import LockError
from lockkit.model.types import Kind, LockInfo
from lockkit.stores.sql.codec import FREE, decode, is_whole, row_id
from lockkit.stores.sql.connector import Parameters
from lockkit.stores.sql.dialect import Dialect

MARK = '{"words":'
PAGE = 500
"""Rows that one statement looks at, of any prefix."""

Rows = Callable[[str, Parameters], Sequence[Sequence[Any]]]
Row = tuple[int, str, int, str]
"""The clock, name, fence and state."""


def prefix_of_words(prefix: str) -> str:
    """A prefix that no alias can have, because no KEY_PREFIX has braces. The alias's own prefix is
    hashed, because it may be as long as the column."""
    return "{words}" + hashlib.sha256(prefix.encode()).hexdigest()[:32]


def row_of_words(prefix: str, name: str, *, repaired: bool = False) -> str:
    """The id of the row. A repair of the name's record has the next slot."""
    slot = (slot_of(name) + repaired) % SLOTS
    return hashlib.sha256(f"{prefix_of_words(prefix)}{slot}".encode()).hexdigest()


def values_of(prefix: str, words: Words) -> Parameters:
    """The columns of the row with these words. They do not contain the token."""
    holder = words.holder
    told = (words.name, words.at, words.by, words.kind, holder.permits, holder.owner, holder.fence,
            holder.granted, holder.renewed, holder.until, holder.ttl, holder.max_hold,
            holder.shared)  # fmt: skip
    return {
        "id": row_of_words(prefix, words.name, repaired=not holder.fence),
        "prefix": prefix_of_words(prefix),
        "name": words.name,
        "fence": holder.fence,
        "state": MARK + json.dumps(told, separators=(",", ":")) + "}",
        "now": words.at,
    }


def is_words(text: object) -> bool:
    return isinstance(text, str) and text.startswith(MARK)


def words_in(rows: Rows, dialect: Dialect, prefix: str, name: str | None) -> Iterator[LockInfo]:
    """The words that were written down; and those of leases that nobody has written down yet. Such
    a lease was abandoned so long ago that no listing shows it, and its name was not used since."""
    if name is None:
        pages = rows_of(rows, dialect, prefix_of_words(prefix)), rows_of(rows, dialect, prefix)
    else:
        ids = row_of_words(prefix, name), row_of_words(prefix, name, repaired=True)
        first, repair, last = (
            _one(rows(dialect.read, {"id": row}), name) for row in (*ids, row_id(prefix, name))
        )
        pages = chain(first, repair), last
    written = ((now, _words(text)) for now, _, _, text in pages[0])
    left = (
        (now, words)
        for now, found, fence, text in pages[1]
        for words in _abandoned(found, text, fence, now)
    )
    infos = (words_info(words, now) for now, words in chain(written, left) if words is not None)
    return islice((i for i in infos if i is not None and name in (None, i.name)), SLOTS)


def rows_of(rows: Rows, dialect: Dialect, prefix: str) -> Iterator[Row]:
    """The rows of this prefix that have a state. They are read in pages, so that neither memory nor
    a read transaction grows."""
    after = ""
    while True:
        found = rows(dialect.page, {"after": after, "prefix": prefix, "most": PAGE})
        for now, after, _, name, fence, says, text in found:  # noqa: B007  for the next page
            if says == prefix and text != FREE:
                yield now, name, fence, text
        if len(found) < PAGE:
            return


def _one(found: Sequence[Sequence[Any]], name: str) -> Iterator[Row]:
    for now, _, fence, text in found:
        yield now, name, fence or 0, text or FREE


def _abandoned(name: str, text: str, fence: int, now: int) -> Iterator[Words]:
    """The last words in a state. A state that cannot be read has none: the listing reports it."""
    with suppress(LockError):
        state = decode(text, fence)
        state.prune(now)
        yield from last_words(name, state)


def _words(text: str) -> Words | None:
    """The words in a row. None if lockkit has not written them: words only inform, so a row that
    cannot be read is ignored."""
    try:
        name, at, by, kind, permits, owner, *times, ttl, max_hold, shared = json.loads(text)[
            "words"
        ]
        fence, granted, renewed, until = times
        if not all(map(is_whole, (at, permits, ttl, max_hold or 0, *times))):
            return None
        holder = Holder("", str(owner), fence, granted, renewed, until, ttl, max_hold or None,
                        shared=bool(shared), permits=permits)  # fmt: skip
        return Words(str(name), at, str(by), Kind(kind), holder)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
