"""The store that docs/writing-a-store.md shows, as a distribution of somebody else's has it: a file
outside of lockkit, which an entry point names, and a test of one class."""

from __future__ import annotations

import atexit
import re
import shutil
import sys
import tempfile
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

import lockkit

PAGE = (ROOT / "docs" / "writing-a-store.md").read_text(encoding="utf-8")
STORE, TEST, _ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(METADATA,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
MOST_LINES = 80


def installed() -> Any:
    """The module, once its distribution is on the path."""
    folder = Path(tempfile.mkdtemp(prefix="lockkit-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "my_package.py").write_text(STORE, encoding="utf-8")
    info = folder / "my_package-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1\n")
    points = tomllib.loads(METADATA)["project"]["entry-points"]["lockkit.backends"]
    lines = [f"{scheme} = {path}" for scheme, path in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[lockkit.backends]", *lines]))
    sys.path.append(str(folder))
    return import_module("my_package")


my_package = installed()
exec(compile(TEST, "docs/writing-a-store.md", "exec"))


def test_it_is_small() -> None:
    assert len(STORE.splitlines()) < MOST_LINES


@pytest.mark.parametrize(
    ("url", "backend"), [("small://", None), ("any://", "my_package:SmallStore")]
)
def test_it_is_found_by_its_entry_point_and_by_its_path(url: str, backend: str | None) -> None:
    client = lockkit.connect(url, backend=backend)
    assert client.store is my_package.everybodys
    with client.lock("a"):
        assert client.lock("a").try_acquire() is None
    client.close()


def test_the_settings_of_a_project_name_it() -> None:
    from lockkit.model.settings import read_settings
    from lockkit.stores.registry import load_store

    small = {"BACKEND": "my_package:SmallStore"}
    settings = read_settings({"default": small}, default_location="memory://", environ={})
    assert load_store(settings["default"]) is my_package.everybodys
    small |= {"OPTIONS": {"size": 3}}  # type: ignore[dict-item]
    settings = read_settings({"default": small}, default_location="memory://", environ={})
    with pytest.raises(lockkit.ConfigurationError, match="'size'"):
        load_store(settings["default"])
