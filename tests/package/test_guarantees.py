"""docs/guarantees.toml: what each store declares is what is said, and each cell has its test."""

from __future__ import annotations

import ast
import copy
import runpy
from collections.abc import Iterator
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

import pytest
from places import ROOT

from lockkit.stores import contract
from lockkit.stores.registry import SCHEMES
from lockkit.testing.conformance.base import Suite

TOOL = runpy.run_path(str(ROOT / "tools" / "guarantees.py"))
DATA: dict[str, Any] = TOOL["read"]()
STORES: dict[str, Any] = DATA["stores"]
SUITES = ROOT / "tests" / "stores" / "conformance"
NOTHING = "-"
"""Stands for the words where a fault cannot happen. A sentence then says why."""


@cache
def module(name: str) -> Any:
    """Loaded by its path, because a test's module is not in a package."""
    spec = spec_from_file_location(f"guaranteed_{name}", SUITES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    found = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def suites(store: dict[str, Any]) -> list[type[Suite]]:
    pairs = [each.split("::") for each in store["suites"]]
    return [getattr(module(file.removesuffix(".py")), name) for file, name in pairs]


for _store in STORES.values():
    suites(_store)  # now, and not in a test: Django is set up by some of them


def missing(data: dict[str, Any]) -> Iterator[str]:
    """The cells without a test."""
    for name, store in data["stores"].items():
        for trait in data["traits"]:
            words, test = TOOL["cell"](data, trait, store)
            if not is_shown(words, test, store):
                yield f"{name}: {trait}: {test}"
        for fault in data["faults"]:
            words, test = store["faults"].get(fault, ["", ""])
            if not is_shown(words, test, store):
                yield f"{name}: {fault}: {test}"


def is_shown(words: str, test: str, store: dict[str, Any]) -> bool:
    """By tests that exist; one of the suite is run by one of the store's suites."""
    if "; " in test:
        return all(is_shown(words, each, store) for each in test.split("; "))
    where, _, name = test.partition("::")
    if where == "suite":
        run = suites(store) + (suites(STORES[store["like"]]) if "like" in store else [])
        return any(getattr(suite, name, None) is not None for suite in run)
    if name:
        return (ROOT / where).exists() and name in names_in(where)
    is_nothing = words in {NOTHING, "no"} or [NOTHING, test] in store["faults"].values()
    return is_nothing and test.endswith(".")


@cache
def names_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_cell_has_its_test() -> None:
    assert not [*missing(DATA)]


@pytest.mark.parametrize(
    ("where", "cell"),
    [
        (("stores", "redlock", "faults", "clock"), ["a second holder", ""]),
        (("stores", "redis", "faults", "clock"), ["-", "tests/stores/test_redis.py::test_no_such"]),
        (("stores", "redis", "faults", "network"), ["lost", "suite::test_nothing_is_listed"]),
        (("stores", "redlock", "faults", "memory_full"), None),
        (("traits", "Fenced", "yes"), ["yes", "suite::test_no_such_thing"]),
    ],
)
def test_a_cell_without_one_is_found(where: tuple[str, ...], cell: list[str] | None) -> None:
    data = copy.deepcopy(DATA)
    *path, last = where
    at = data
    for key in path:
        at = at[key]
    at[last] = cell
    if cell is None:
        data["faults"][last] = {"title": "a fault that no store has a cell for"}
        del at[last]
    assert [*missing(data)]


@pytest.mark.parametrize("name", STORES)
def test_what_is_declared_is_what_is_said(name: str) -> None:
    store = STORES[name]
    for suite in suites(store):
        assert {trait.__name__ for trait in contract.traits_of(suite.tested)} == {*store["traits"]}
    covered = {scheme for suite in suites(store) for scheme in suite.schemes}
    assert {*store["schemes"]} == covered


def test_each_scheme_has_a_row() -> None:
    assert {scheme for store in STORES.values() for scheme in store["schemes"]} == {*SCHEMES}


def test_each_trait_has_a_column() -> None:
    assert {*DATA["traits"]} == {trait.__name__ for trait in contract.TRAITS}


def test_each_store_says_what_a_process_needs() -> None:
    for store in STORES.values():
        assert all(store[key] for key in ("title", "url", "where", "connections", "threads"))
        assert "needs" in store or "like" in store
        assert {*store["faults"]} == {*DATA["faults"]}
        assert {*store.get("traits_said", ())} <= {*DATA["traits"]}


def test_the_pages_are_made_of_it() -> None:
    """If not: python tools/guarantees.py"""
    for path, text in TOOL["made"]().items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: run tools/guarantees.py"
