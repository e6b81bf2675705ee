"""Nobody registers a backend that has not passed the suite."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockkit.stores.registry import SCHEMES

SUITES = {"StoreConformance", "OverAWire", "OfAnotherServer", "Reached", "OverTLS"}


def covered() -> Iterator[str]:
    """The ``schemes`` of every conformance class beside this file that starts its store."""
    for path in Path(__file__).parent.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and SUITES.intersection(map(_name, node.bases)):
                yield from _schemes(node) if _starts(node) else ()


def _starts(node: ast.ClassDef) -> bool:
    return any(isinstance(each, ast.FunctionDef) and each.name == "store" for each in node.body)


def _schemes(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        if isinstance(statement, ast.Assign) and _name(statement.targets[0]) == "schemes":
            yield from ast.literal_eval(statement.value)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_every_registered_scheme_has_a_conformance_class(scheme: str) -> None:
    assert scheme in set(covered())


def test_one_without_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMES, "etcd", "lockkit_etcd:EtcdStore")
    assert set(SCHEMES) - set(covered()) == {"etcd"}
