"""The tables of a listing: for people, in the columns that their terminal has."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from lockkit.model.types import Kind, LockInfo, LockState
from lockkit.operate.commands.stores import Row
from lockkit.operate.commands.terminal import Console, clipped, columns, duration, escape, pad

__all__ = ["Table", "held_as", "verdict"]

GAP = "  "
INDENT = "    "
LEAST = 8
"""Columns that a name and an owner keep, however narrow the terminal is."""


def held_as(info: LockInfo) -> str:
    """The state, and of what is held in more than one way, in which one."""
    if info.state is not LockState.HELD:
        return info.state.value
    if info.kind is Kind.RW:
        return "read" if info.shared else "write"
    return "permit" if info.kind is Kind.SEMAPHORE else info.state.value


def verdict(row: Row) -> str:
    """What an operator is to make of it; the state is what it is."""
    return "STUCK" if row.stuck else "info" if row.reason else "ok"


class Column(NamedTuple):
    title: str
    cell: Callable[[Row], str]
    least: int = 0  #: columns; so that a later page seldom needs more than the first
    right: bool = False


def _owner(row: Row) -> str:
    owner = row.info.owner
    return escape(str(owner)) if owner else "-"


def _thread(row: Row) -> str:
    return escape(row.info.owner.thread) if row.info.owner else "-"


def _left(row: Row) -> str:
    if row.info.left is None:
        return "-" if row.info.owner is None and row.info.age is None else "none"
    return duration(row.info.left)


def _waiters(row: Row) -> str:
    info = row.info
    dead = info.waiters != info.waiters_alive
    return f"{info.waiters_alive}/{info.waiters}" if dead else str(info.waiters)


ALIAS = Column("ALIAS", lambda row: escape(row.alias), 7)
NAME = Column("NAME", lambda row: escape(row.info.name), 16)
OWNER = Column("OWNER", _owner, 24)
VERDICT = Column("VERDICT", verdict)
FENCE = Column(
    "FENCE", lambda row: "-" if row.info.fence is None else str(row.info.fence), 16, right=True
)
NARROW = (
    ALIAS,
    NAME,
    Column("STATE", lambda row: held_as(row.info), 9),
    VERDICT,
    OWNER,
    Column("AGE", lambda row: duration(row.info.age), 6, right=True),
    Column("LEFT", _left, 6, right=True),
    Column("WAITERS", _waiters, right=True),
    FENCE,
)
WIDE = (
    *NARROW,
    Column("THREAD", _thread, 10),
    Column("RENEWED", lambda row: duration(row.info.renewed), right=True),
    Column("TTL", lambda row: duration(row.info.ttl), 6, right=True),
    Column("MAX-HOLD", lambda row: duration(row.info.max_hold), right=True),
    Column("KIND", lambda row: row.info.used_as, 5),
)
FULL_WIDTH = 110
"""A narrower terminal shows no fencing tokens, and no alias where there is only one."""


class Table:
    """Columns only ever grow wider, by the widest cell so far. On a terminal the narrow table
    fits: names and owners are clipped, and ``show`` takes a clipped name."""

    def __init__(self, console: Console, *, wide: bool, one_alias: bool) -> None:
        self._console = console
        self._limit = None if wide else console.width
        layout: tuple[Column, ...] = WIDE if wide else NARROW
        if self._limit is not None and self._limit < FULL_WIDTH:
            left_out = (FENCE, ALIAS) if one_alias else (FENCE,)
            layout = tuple(column for column in layout if column not in left_out)
        self._layout: Sequence[Column] = layout
        self.start()

    def start(self) -> None:
        self._widths = {
            column: max(len(column.title), 0 if self._is_clipped(column) else column.least)
            for column in self._layout
        }
        self._begun = False

    def page(self, rows: Sequence[Row]) -> None:
        lines = [{column: column.cell(row) for column in self._layout} for row in rows]
        for column in self._layout:
            most = max(columns(line[column]) for line in lines)
            self._widths[column] = max(self._widths[column], most)
        widths = self._fitting()
        if not self._begun:
            self._begun = True
            titles = {column: column.title for column in self._layout}
            self._console.write(self._line(titles, widths, None))
        for row, line in zip(rows, lines, strict=True):
            self._console.write(self._line(line, widths, row) + self._reason(row))

    def finish(self, down: Mapping[str, str], about: object) -> None:
        """A table has no end. What is down, or empty, is said on standard error."""

    def _is_clipped(self, column: Column) -> bool:
        return self._limit is not None and column in (NAME, OWNER)

    def _fitting(self) -> dict[Column, int]:
        """The widths, of which those of names and owners share what the others leave."""
        if self._limit is None:
            return self._widths
        others = sum(w for column, w in self._widths.items() if column not in (NAME, OWNER))
        room = self._limit - others - len(GAP) * (len(self._layout) - 1)
        name, owner = self._widths[NAME], self._widths[OWNER]
        if name + owner > room:
            name = max(LEAST, min(name, max(room // 2, room - owner)))
            owner = max(LEAST, min(owner, room - name))
        return {**self._widths, NAME: name, OWNER: owner}

    def _line(
        self, cells: Mapping[Column, str], widths: Mapping[Column, int], row: Row | None
    ) -> str:
        texts = []
        for column in self._layout:
            text, width = cells[column], widths[column]
            if self._is_clipped(column):
                text = clipped(text, width)
            text = pad(text, width, right=column.right)
            is_red = column is VERDICT and row is not None and row.stuck
            texts.append(self._console.red(text) if is_red else text)
        return GAP.join(texts).rstrip() + "\n"

    def _reason(self, row: Row) -> str:
        """Below its row: what is to be done about it need not fit beside it."""
        reason = row.reason
        if reason is None:
            return ""
        text = escape(reason)
        width = (self._limit or 0) - len(INDENT)
        lines = textwrap.wrap(text, max(width, 20)) if self._limit else [text]
        return "".join(f"{INDENT}{line}\n" for line in lines)
