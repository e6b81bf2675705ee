"""docs/python.md: its Python runs, and it documents every public name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

import lockkit
from lockkit.leases.client import Lease, Lock, LockClient
from lockkit.model import errors
from lockkit.model.settings import CHECKS, AliasSettings

PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
DECORATED = {"retry_after", "note_hold", "backend", "settings"}
"""Members for adapters."""


def public(kind: type) -> list[str]:
    return [name for name in dir(kind) if not name.startswith("_")]


def test_every_block_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCKKIT_URL", "memory://not-that-of-the-page")
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert len(blocks) > 5
    names: dict[str, Any] = {"__name__": "reference"}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)


@pytest.mark.parametrize(
    "word",
    [
        *(f"| `{key.lower()}` |" for key in CHECKS if key != "LOCATION"),
        *(f"`{name}" for name in public(LockClient) if name not in DECORATED),
        *(f"`{name}" for name in public(Lock) if name != "name"),
        *(f"`{name}" for name in public(Lease)),
        *(
            f"`{name}`"
            for name, kind in vars(errors).items()
            if isinstance(kind, type) and issubclass(kind, lockkit.LockError)
        ),
    ],
)
def test_it_is_documented(word: str) -> None:
    assert word in PAGE


def test_the_defaults_are_those_of_the_settings() -> None:
    defaults = AliasSettings()
    for key in ("ttl", "acquire_timeout", "max_hold", "max_queue"):
        assert f"| `{key}` | `{getattr(defaults, key):g}` |" in PAGE
    assert f'| `key_prefix` | `"{defaults.key_prefix}"` |' in PAGE
