"""The example runs as its users run it: by its own commands, in its own processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from places import ROOT

EXAMPLE = ROOT / "example_project"
MANAGE = EXAMPLE / "manage.py"
OURS = ("SHOP_", "LOCKKIT_URL", "DATABASE_URL", "DJANGO_SETTINGS_MODULE")

Manage = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def surroundings(tmp_path: Path) -> dict[str, str]:
    """An environment in which the example makes its temporary files below ``tmp_path``."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    return environment_with(TMPDIR=str(temporary))


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
        yield lambda *arguments, **environment: started(
            stack, surroundings | environment, *arguments
        )


@pytest.fixture(scope="module")
def start_for_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """``start`` for all tests of a module; it is stopped at their end."""
    with ExitStack() as stack:
        yield lambda *arguments, **environment: started(
            stack,
            environment_with(TMPDIR=str(tmp_path_factory.mktemp("tmp")), **environment),
            *arguments,
        )


@pytest.fixture
def example_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the parts of the example that need no Django."""
    monkeypatch.syspath_prepend(str(EXAMPLE))


def environment_with(**values: str) -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(OURS)} | values


def started(
    stack: ExitStack, environment: dict[str, str], *arguments: str
) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, str(MANAGE), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    stack.enter_context(process)
    stack.callback(process.terminate)
    return process
