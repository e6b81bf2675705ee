"""``lockkit.locked`` in a process that has an adapter, whose settings it does not know."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DJANGO = """
import django
from django.conf import settings

settings.configure(INSTALLED_APPS=["lockkit_django"])
django.setup()
"""
FLASK = """
from flask import Flask
from lockkit_flask import LockKit

LockKit(Flask("shop", instance_path={place!r}))
"""
CALLS = """
import asyncio, json, warnings
from lockkit import locked

@locked("stock:{sku}")
def deduct(sku): pass

@locked("stock:{sku}")
async def deduct_async(sku): pass

with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    for sku in "AB":
        deduct(sku)
        asyncio.run(deduct_async(sku))
print(json.dumps([[each.filename, str(each.message)] for each in found]))
"""


@pytest.mark.parametrize(
    ("set_up", "adapter"),
    [(DJANGO, "lockkit_django"), (FLASK, "lockkit_flask"), ("import lockkit_flask", "")],
    ids=["django", "flask", "an adapter that is not set up"],
)
def test_it_says_once_where_to_import_it_from(set_up: str, adapter: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(set_up.replace("{place!r}", repr(str(tmp_path))) + CALLS)
    ran = subprocess.run(
        [sys.executable, str(program)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "LOCKKIT_URL": "memory://"},
    )
    found = json.loads(ran.stdout)
    assert len(found) == bool(adapter)
    for place, text in found:
        assert place == str(program)
        assert f"not by the settings of {adapter}" in text
        assert f"from {adapter} import locked" in text
