"""The behaviour of orders over HTTP is one suite, and every adapter runs all of it."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import order_suite
import pytest
from order_suite import Suite

ADAPTERS = Path(__file__).parent.parent


@pytest.mark.parametrize("adapter", ["django", "flask"])
def test_an_adapter_runs_every_class_of_the_suite(adapter: str) -> None:
    tree = ast.parse((ADAPTERS / adapter / "orders" / "test_suite.py").read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    run = {base.id for node in classes for base in node.bases if isinstance(base, ast.Name)}
    assert run == classes_of_the_suite()


def classes_of_the_suite() -> set[str]:
    for found in iter_modules(order_suite.__path__):
        import_module(f"order_suite.{found.name}")
    return {each.__name__ for each in Suite.__subclasses__()}
