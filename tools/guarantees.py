"""Makes docs/guarantees.md, docs/guarantees-tests.md and the first table of docs/stores.md from
docs/guarantees.toml."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
MARKS = "<!-- made from guarantees.toml by tools/guarantees.py -->", "<!-- end -->"
AS_FAULT = "faults."
ABILITIES = 7
"""The number of traits in the first table."""

HEAD = """# Which store for me, and what it keeps

Each cell of these tables [has its test](guarantees-tests.md). Where something is promised, the test
shows it. Where nothing is, the test shows what happens, or a sentence says why it cannot happen.

## Which store for me

Most projects have a database or a Redis already: take that one.
"""
NEEDS = """
## What a process needs

Connections and threads of a client that holds leases. Where asyncio differs, the cell says so.
One more thread calls `on_lost`, if it is given. `tests/stores/test_needs.py` counts them, except
those of Sentinels and of a Cluster.
"""
CAN = """
## What they can do
"""
FAULTS = """
## What happens when something fails

What happens to a lease that is held, and to waiters. A dash: this cannot happen there.
"""
PROOFS = """# The test of each cell

The cells are those of [the tables of stores](guarantees.md). Both pages are made from
[guarantees.toml](guarantees.toml) by `tools/guarantees.py`, and a test compares that file with the
stores. `suite` is the conformance suite, which runs over each store.
"""


def read() -> dict[str, Any]:
    return tomllib.loads((DOCS / "guarantees.toml").read_text(encoding="utf-8"))


def page(data: dict[str, Any]) -> str:
    """docs/guarantees.md."""
    stores, faults = data["stores"].values(), data["faults"]
    titles = {name: trait["title"] for name, trait in data["traits"].items()}
    abilities, ground = (list(titles)[:ABILITIES], list(titles)[ABILITIES:])

    def said(names: list[str]) -> str:
        rows = [[s["title"], *(cell(data, name, s)[0] for name in names)] for s in stores]
        return shortened(["store", *map(titles.__getitem__, names)], rows)

    choice = [[s["choose"], s["title"], s["url"]] for s in stores]
    needs = [[s["title"], s["connections"], s["threads"]] for s in stores]
    fates = [[s["title"], *(s["faults"][name][0] for name in faults)] for s in stores]
    parts = [
        HEAD,
        table(["choose it for", "store", "URL"], *choice),
        NEEDS,
        table(["store", "connections", "threads"], *needs),
        CAN,
        said(abilities),
        said(ground),
        FAULTS,
        shortened(["store", *(fault["title"] for fault in faults.values())], fates),
    ]
    return joined(parts)


def shortened(head: list[str], rows: list[list[str]]) -> str:
    """A table. Columns in which at most one cell differs become a list before it."""
    names, *columns = zip(head, *rows, strict=True)
    kept, sentences = [names], []
    for title, *cells in columns:
        ((usual, often), *_) = Counter(cells).most_common()
        others = [
            f"; {name}: {cell}"
            for name, cell in zip(names[1:], cells, strict=True)
            if cell != usual
        ]
        if often < len(cells) - 1:
            kept.append((title, *cells))
        else:
            sentences.append(f"- *{title}*: {usual}{''.join(others)}.\n")
    if sentences:
        sentences = ["In every store:\n\n", *sentences, "\n"]
    return "".join(sentences) + table(*zip(*kept, strict=True))


def page_of_tests(data: dict[str, Any]) -> str:
    """docs/guarantees-tests.md."""
    return joined([PROOFS, table(["what", "stores", "test"], *proofs(data))])


def joined(parts: list[str]) -> str:
    return "\n".join(part.strip("\n") + "\n" for part in parts)


def stores_table(data: dict[str, Any]) -> str:
    """The first table of docs/stores.md."""
    return table(
        ["URL", "excludes in", "waiters are woken", "a restart of the store"],
        *(
            [s["url"], s["where"], cell(data, "Pushed", s)[0], s["faults"]["restart"][0]]
            for s in data["stores"].values()
        ),
    )


def cell(data: dict[str, Any], name: str, store: dict[str, Any]) -> list[str]:
    """The words and the test for this trait, which the store declares or does not."""
    said = store.get("traits_said", {}).get(name)
    words, test = said or data["traits"][name]["yes" if name in store["traits"] else "no"]
    if test.startswith(AS_FAULT):
        test = store["faults"][test.removeprefix(AS_FAULT)][1]
    return [words, test]


def proofs(data: dict[str, Any]) -> list[list[str]]:
    """For each promise: its words, its stores, and its test."""
    said: dict[tuple[str, str, str], list[str]] = {}
    for store in data["stores"].values():
        for name, trait in data["traits"].items():
            words, test = cell(data, name, store)
            said.setdefault((trait["title"], words, test), []).append(store["title"])
        for name, fault in data["faults"].items():
            words, test = store["faults"][name]
            said.setdefault((fault["title"], words, test), []).append(store["title"])
    return [
        [f"{title}: {words}", "; ".join(stores), f"`{test}`" if "::" in test else test]
        for (title, words, test), stores in sorted(said.items())
    ]


def table(head: Sequence[str], *rows: Sequence[str]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def placed(text: str, made: str) -> str:
    """The page, with the generated text between the marks."""
    begin, end = MARKS
    pattern = re.escape(begin) + ".*?" + re.escape(end)
    return re.sub(pattern, lambda _: f"{begin}\n{made}\n{end}", text, flags=re.DOTALL)


def made() -> dict[Path, str]:
    """The text that each page should have."""
    data, stores = read(), DOCS / "stores.md"
    return {
        DOCS / "guarantees.md": page(data),
        DOCS / "guarantees-tests.md": page_of_tests(data),
        stores: placed(stores.read_text(encoding="utf-8"), stores_table(data)),
    }


if __name__ == "__main__":
    for path, text in made().items():
        path.write_text(text, encoding="utf-8")
