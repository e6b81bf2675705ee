"""The example runs as its users run it: by its own commands, in its own processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "example_project"
MANAGE = EXAMPLE / "manage.py"

Manage = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def surroundings(tmp_path: Path) -> dict[str, str]:
    """An environment in which the example makes its temporary files below ``tmp_path``."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SHOP_", "LOCKKIT_URL"))}
    kept.pop("DATABASE_URL", None)
    kept.pop("DJANGO_SETTINGS_MODULE", None)
    return {**kept, "TMPDIR": str(temporary)}


@pytest.fixture
def manage(surroundings: dict[str, str]) -> Manage:
    """``manage("race", "--mode", "none", LOCKKIT_URL=…)``: the finished process."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(MANAGE), *arguments],
            env=surroundings | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=150,
        )

    return run


@pytest.fixture
def start(surroundings: dict[str, str]) -> Iterator[Start]:
    """``start("demo")``: the running process; it is killed at the end if it has not ended."""
    with ExitStack() as stack:

        def begin(*arguments: str, **environment: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, str(MANAGE), *arguments],
                env=surroundings | environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield begin


@pytest.fixture
def example_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the parts of the example that need no Django."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
