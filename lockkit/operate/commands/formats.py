"""What a listing looks like. Each format is written page by page, as the rows arrive."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from lockkit.model.types import Owner
from lockkit.operate.commands.stores import Row
from lockkit.operate.commands.table import Table, verdict
from lockkit.operate.commands.terminal import Console, escape
from lockkit.operate.inspect import process_of, safe_to_break

__all__ = ["Format", "as_data", "format_named"]

VERSION = 1
"""Of the JSON document. Within a version keys are only added."""

FORMULA = ("=", "+", "-", "@")
"""What makes a spreadsheet run the text of a cell."""


class About(Protocol):
    """Where was looked, by alias."""

    def __call__(self, *, nothing: bool) -> Mapping[str, Mapping[str, Any]]: ...


class Format(Protocol):
    """``start``, any number of ``page``, ``finish``; then again, with ``--watch``."""

    def start(self) -> None: ...

    def page(self, rows: Sequence[Row]) -> None: ...

    def finish(self, down: Mapping[str, str], about: About) -> None: ...


def format_named(name: str, console: Console, *, one_alias: bool = False) -> Format:
    if name == "json":
        return JSON(console)
    if name == "jsonl":
        return JSONLines(console)
    if name == "csv":
        return CSV(console)
    return Table(console, wide=name == "wide", one_alias=one_alias)


class JSON:
    """``{"version": 1, "locks": […], "stores": {alias: …}, "down": {alias: error}}``."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def start(self) -> None:
        self._console.write(f'{{"version": {VERSION}, "locks": [')
        self._separator = "\n"

    def page(self, rows: Sequence[Row]) -> None:
        texts = [json.dumps(as_data(row)) for row in rows]
        self._console.write(self._separator + ",\n".join(texts))
        self._separator = ",\n"

    def finish(self, down: Mapping[str, str], about: About) -> None:
        stores = json.dumps(about(nothing=self._separator == "\n"))
        self._console.write(f'\n], "stores": {stores}, "down": {json.dumps(dict(down))}}}\n')


class JSONLines:
    """One object a line, each as in ``json``."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def start(self) -> None:
        """There is nothing before the first line."""

    def page(self, rows: Sequence[Row]) -> None:
        self._console.write("".join(json.dumps(as_data(row)) + "\n" for row in rows))

    def finish(self, down: Mapping[str, str], about: About) -> None:
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

    def finish(self, down: Mapping[str, str], about: About) -> None:
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
        "verdict": verdict(row).lower(),
        "stuck": row.stuck.code if row.stuck else None,
        "reason": row.reason,
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
        "process": process_of(info.owner).value,
        "safe_to_break": safe_to_break(info).safe,
        "broken_by": info.broken_by or None,
        "waiting": info.waiting,
        "queue": [
            {"owner": _owner_data(each.owner), "since": each.since, "alive": each.alive}
            for each in info.queue
        ],
    }


def _owner_data(owner: Owner | None) -> dict[str, Any] | None:
    if owner is None:
        return None
    return {"host": owner.host, "pid": owner.pid, "thread": owner.thread, "label": owner.label}


CSV_TITLES = ("alias", "name", "state", "verdict", "stuck", "reason", "host", "pid", "thread",
              "label", "age", "left", "renewed", "ttl", "max_hold", "waiters", "waiters_alive",
              "fence", "kind", "permits", "shared", "process", "safe_to_break", "broken_by",
              "waiting")  # fmt: skip


def _flat(row: Row) -> list[object]:
    data = as_data(row)
    data.update(data.pop("owner") or {})
    return [_csv_cell(data.get(title)) for title in CSV_TITLES]


def _csv_cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = escape(value)
    return f"'{text}" if text.startswith(FORMULA) else text
