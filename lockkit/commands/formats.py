"""What a listing looks like. Each format is written page by page, as the rows arrive."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from lockkit.commands.stores import Row
from lockkit.commands.terminal import Console, columns, duration, escape, pad
from lockkit.types import Kind, LockInfo, LockState, Owner

__all__ = ["Format", "as_data", "format_named", "held_as"]

VERSION = 1
"""Of the JSON document. Within a version keys are only added."""

CLIPPED = 48
"""Columns an owner may take in a table on a terminal."""

FORMULA = ("=", "+", "-", "@")
"""What makes a spreadsheet run the text of a cell."""


class Format(Protocol):
    """``start``, any number of ``page``, ``finish``; then again, with ``--watch``."""

    def start(self) -> None: ...

    def page(self, rows: Sequence[Row]) -> None: ...

    def finish(self, down: Mapping[str, str]) -> None: ...


def format_named(name: str, console: Console) -> Format:
    if name == "json":
        return JSON(console)
    if name == "jsonl":
        return JSONLines(console)
    if name == "csv":
        return CSV(console)
    return Table(console, WIDE if name == "wide" else NARROW, clip=name == "table")


class Column(NamedTuple):
    title: str
    cell: Callable[[Row], str]
    least: int = 0  #: columns; so that a later page seldom needs more than the first
    right: bool = False


def _alias(row: Row) -> str:
    return escape(row.alias)


def _state(row: Row) -> str:
    return "STUCK" if row.stuck else held_as(row.info)


def held_as(info: LockInfo) -> str:
    """The state, and of what is held in more than one way, in which one."""
    if info.state is not LockState.HELD:
        return info.state.value
    if info.kind is Kind.RW:
        return "read" if info.shared else "write"
    return "permit" if info.kind is Kind.SEMAPHORE else info.state.value


def _owner(row: Row) -> str:
    owner = row.info.owner
    return escape(str(owner)) if owner else "-"


def _left(row: Row) -> str:
    if row.info.left is None:
        return "-" if row.info.owner is None and row.info.age is None else "none"
    return duration(row.info.left)


def _waiters(row: Row) -> str:
    info = row.info
    dead = info.waiters != info.waiters_alive
    return f"{info.waiters_alive}/{info.waiters}" if dead else str(info.waiters)


def _fence(row: Row) -> str:
    return "-" if row.info.fence is None else str(row.info.fence)


NARROW = (
    Column("ALIAS", _alias, 7),
    Column("NAME", lambda row: escape(row.info.name), 16),
    Column("STATE", _state, 6),
    Column("OWNER", _owner, 24),
    Column("AGE", lambda row: duration(row.info.age), 5, right=True),
    Column("LEFT", _left, 5, right=True),
    Column("WAITERS", _waiters, 7, right=True),
    Column("FENCE", _fence, 16, right=True),
)
STATE, OWNER = 2, 3
WIDE = (
    *NARROW,
    Column("THREAD", lambda row: escape(row.info.owner.thread) if row.info.owner else "-", 10),
    Column("RENEWED", lambda row: duration(row.info.renewed), 7, right=True),
    Column("TTL", lambda row: duration(row.info.ttl), 6, right=True),
    Column("MAX-HOLD", lambda row: duration(row.info.max_hold), 8, right=True),
    Column("KIND", lambda row: row.info.used_as, 5),
)


class Table:
    """For people. Columns only ever grow wider, by the widest cell so far."""

    def __init__(self, console: Console, layout: Sequence[Column], *, clip: bool) -> None:
        self._console = console
        self._layout = layout
        self._clip = clip and console.is_terminal
        self.start()

    def start(self) -> None:
        self._widths = [max(len(column.title), column.least) for column in self._layout]
        self._begun = False

    def page(self, rows: Sequence[Row]) -> None:
        lines = [[column.cell(row) for column in self._layout] for row in rows]
        if self._clip:
            lines = [[*line[:OWNER], _clipped(line[OWNER]), *line[OWNER + 1 :]] for line in lines]
        for number, cells in enumerate(zip(*lines, strict=True)):
            self._widths[number] = max(self._widths[number], *map(columns, cells))
        if not self._begun:
            self._begun = True
            self._console.write(self._line([column.title for column in self._layout], None))
        self._console.write("".join(map(self._line, lines, rows)))

    def finish(self, down: Mapping[str, str]) -> None:
        """A table has no end. What is down was said on standard error."""

    def _line(self, cells: Sequence[str], row: Row | None) -> str:
        padded = [
            pad(cell, width, right=column.right)
            for cell, width, column in zip(cells, self._widths, self._layout, strict=True)
        ]
        if row is not None and row.stuck:
            padded[STATE] = self._console.red(padded[STATE])
            padded.append(escape(row.stuck.reason))
        return "  ".join(padded).rstrip() + "\n"


def _clipped(text: str) -> str:
    return text if len(text) <= CLIPPED else text[: CLIPPED - 1] + "…"


class JSON:
    """One document: ``{"version": 1, "locks": […], "down": {alias: error}}``."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def start(self) -> None:
        self._console.write(f'{{"version": {VERSION}, "locks": [')
        self._separator = "\n"

    def page(self, rows: Sequence[Row]) -> None:
        texts = [json.dumps(as_data(row)) for row in rows]
        self._console.write(self._separator + ",\n".join(texts))
        self._separator = ",\n"

    def finish(self, down: Mapping[str, str]) -> None:
        self._console.write(f'\n], "down": {json.dumps(dict(down))}}}\n')


class JSONLines:
    """One object a line, each as in ``json``."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def start(self) -> None:
        """There is nothing before the first line."""

    def page(self, rows: Sequence[Row]) -> None:
        self._console.write("".join(json.dumps(as_data(row)) + "\n" for row in rows))

    def finish(self, down: Mapping[str, str]) -> None:
        """There is nothing after the last line."""


class CSV:
    """For spreadsheets: text is escaped as in the table, and never a formula."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun = False

    def start(self) -> None:
        if not self._begun:
            self._begun = True
            self._rows([CSV_TITLES])

    def page(self, rows: Sequence[Row]) -> None:
        self._rows([_flat(row) for row in rows])

    def finish(self, down: Mapping[str, str]) -> None:
        """There is nothing after the last line."""

    def _rows(self, rows: Iterable[Sequence[object]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self._console.write(text.getvalue())


def as_data(row: Row) -> dict[str, Any]:
    """One lock as JSON. Durations are seconds; docs/command.md explains each key."""
    info = row.info
    return {
        "alias": row.alias,
        "name": info.name,
        "state": info.state.value,
        "stuck": row.stuck.code if row.stuck else None,
        "reason": row.stuck.reason if row.stuck else None,
        "owner": _owner_data(info.owner),
        "age": info.age,
        "left": info.left,
        "renewed": info.renewed,
        "ttl": info.ttl,
        "max_hold": info.max_hold,
        "waiters": info.waiters,
        "waiters_alive": info.waiters_alive,
        "fence": info.fence,
        "kind": info.kind.value,
        "permits": info.permits or None,
        "shared": info.shared,
    }


def _owner_data(owner: Owner | None) -> dict[str, Any] | None:
    if owner is None:
        return None
    return {"host": owner.host, "pid": owner.pid, "thread": owner.thread, "label": owner.label}


CSV_TITLES = ("alias", "name", "state", "stuck", "reason", "host", "pid", "thread", "label", "age",
              "left", "renewed", "ttl", "max_hold", "waiters", "waiters_alive",
              "fence", "kind", "permits", "shared")  # fmt: skip


def _flat(row: Row) -> list[object]:
    data = as_data(row)
    data.update(data.pop("owner") or {})
    return [_csv_cell(data.get(title)) for title in CSV_TITLES]


def _csv_cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = escape(value)
    return f"'{text}" if text.startswith(FORMULA) else text
