"""The formats of a listing. Each is written page by page, as the rows arrive."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from lockkit.model.types import LockState
from lockkit.operate.columns import (
    ALIAS,
    FENCE,
    NAME,
    OWNER,
    TABLE,
    VERDICT,
    WIDE,
    Column,
    as_json,
)
from lockkit.operate.console import Console
from lockkit.operate.stores import Row, Stores
from lockkit.operate.text import ELLIPSIS, clipped, columns, escape, pad, wrapped

FORMATS = ("table", "wide", "json", "jsonl")
TABLES = ("table", "wide")

VERSION = 1
"""The version of the JSON document. Within a version keys are only added."""

GAP = "  "
INDENT = "    "
LEAST = 8
"""The least width of a name and of an owner, however narrow the terminal is."""

FULL_WIDTH = 110
"""A narrower terminal shows no fencing tokens, and no alias if there is only one."""


class Format:
    """Call ``start``, ``page`` any number of times, and ``finish``. ``--watch`` repeats that."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def start(self) -> None:
        """Write what comes before the first row. Default: nothing."""

    def page(self, rows: Sequence[Row]) -> None:
        raise NotImplementedError

    def finish(self, stores: Stores) -> None:
        """Write what comes after the last row. Default: nothing."""


def format_named(name: str, console: Console, *, one_alias: bool = False) -> Format:
    if name in TABLES:
        return _Table(console, wide=name == "wide", one_alias=one_alias)
    return _Json(console) if name == "json" else _JsonLines(console)


class _Json(Format):
    """``{"version": 1, "locks": […], "stores": {alias: …}, "down": {alias: error}}``."""

    def start(self) -> None:
        self._console.write(f'{{"version": {VERSION}, "locks": [')
        self._separator = "\n"

    def page(self, rows: Sequence[Row]) -> None:
        texts = [json.dumps(as_json(row)) for row in rows]
        self._console.write(self._separator + ",\n".join(texts))
        self._separator = ",\n"

    def finish(self, stores: Stores) -> None:
        about = json.dumps(stores.about(nothing=self._separator == "\n"))
        down = json.dumps({**stores.wrong, **stores.down})
        self._console.write(f'\n], "stores": {about}, "down": {down}}}\n')


class _JsonLines(Format):
    """One object a line, each as in ``json``."""

    def page(self, rows: Sequence[Row]) -> None:
        self._console.write("".join(json.dumps(as_json(row)) + "\n" for row in rows))


class _Table(Format):
    """A column is as wide as its widest cell so far. On a terminal, names and owners are clipped
    to make the narrow table fit; ``show`` takes a clipped name."""

    def __init__(self, console: Console, *, wide: bool, one_alias: bool) -> None:
        super().__init__(console)
        self._limit = None if wide else console.width
        left_out: tuple[Column, ...] = ()
        if self._limit is not None and self._limit < FULL_WIDTH:
            left_out = (FENCE, ALIAS) if one_alias else (FENCE,)
        self._columns = [each for each in (WIDE if wide else TABLE) if each not in left_out]

    def start(self) -> None:
        self._widths = {
            column: max(len(column.title), 0 if self._is_clipped(column) else column.least)
            for column in self._columns
        }
        self._begun = False

    def page(self, rows: Sequence[Row]) -> None:
        shown = self._console.encodable
        lines = [{column: shown(column.cell(row)) for column in self._columns} for row in rows]
        for column in self._columns:
            most = max(columns(line[column]) for line in lines)
            self._widths[column] = max(self._widths[column], most)
        widths = self._fitting()
        if not self._begun:
            self._begun = True
            titles = {column: column.title for column in self._columns}
            self._console.write(self._line(titles, widths))
        for row, line in zip(rows, lines, strict=True):
            text = self._line(line, widths, red=row.stuck is not None)
            self._console.write(text + self._reason(row))

    def _is_clipped(self, column: Column) -> bool:
        return self._limit is not None and column in (NAME, OWNER)

    def _fitting(self) -> dict[Column, int]:
        """The widths. Names and owners share the room that the other columns leave."""
        if self._limit is None:
            return self._widths
        name, owner = self._widths[NAME], self._widths[OWNER]
        others = sum(self._widths.values()) - name - owner
        room = self._limit - others - len(GAP) * (len(self._columns) - 1)
        if name + owner > room:
            name = max(LEAST, min(name, max(room // 2, room - owner)))
            owner = min(owner, max(LEAST, room - name))
        return {**self._widths, NAME: name, OWNER: owner}

    def _line(
        self, cells: Mapping[Column, str], widths: Mapping[Column, int], *, red: bool = False
    ) -> str:
        texts = []
        for column in self._columns:
            text, width = cells[column], widths[column]
            if self._is_clipped(column):
                text = clipped(text, width, self._console.encodable(ELLIPSIS))
            text = pad(text, width, right=column.right)
            texts.append(self._console.red(text) if red and column is VERDICT else text)
        return GAP.join(texts).rstrip() + "\n"

    def _reason(self, row: Row) -> str:
        """The reason, on lines below its row. A command that repairs has a line of its own, whole,
        however long it is: it is for pasting."""
        text = self._console.encodable(escape(row.reason or ""))
        if self._limit is None:
            return f"{INDENT}{text}\n" if text else ""
        why, colon, command = text, "", ""
        if row.info.state is LockState.DAMAGED:
            why, colon, command = text.partition(": ")
        lines = wrapped(why + colon, max(self._limit - len(INDENT), 20))
        return "".join(f"{INDENT}{line}\n" for line in (*lines, command) if line)
