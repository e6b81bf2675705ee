"""docs/command.md names everything that the command has, and its example runs."""

from __future__ import annotations

import inspect
import re

import pytest
from command_line import hold, locks
from places import ROOT

import lockkit
import lockkit.operate.inspect
from lockkit.operate.arguments import COMMANDS, _Parser
from lockkit.operate.commands import Exit
from lockkit.operate.formats import FORMATS

OPTIONS = {text for each in COMMANDS for text in _Parser(each)._option_string_actions}
OPTIONS -= {"-h", "--help"}
PAGE = (ROOT / "docs" / "command.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "word",
    [
        *(f"`{option}" for option in OPTIONS),
        *(f"| `{command}" for command in COMMANDS),
        *(f"`{form}`" for form in FORMATS),
        *(f"| {status.value} |" for status in Exit),
    ],
)
def test_it_is_documented(word: str) -> None:
    assert word in PAGE


def test_every_code_is_documented() -> None:
    codes = re.findall(r'Stuck\("([a-z-]+)"', inspect.getsource(lockkit.operate.inspect))
    assert len(codes) == 11
    for code in codes:
        assert f"| `{code}` |" in PAGE


def test_every_key_is_documented() -> None:
    client = lockkit.connect("memory://")
    hold(client, "x")
    (lock,) = locks(client, "--format", "json").locks
    for key in [*lock, *lock["owner"]]:
        assert f"`{key}`" in PAGE
    client.close()


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(block, "docs/command.md", "exec"), {})
    assert "stock:42" in capsys.readouterr().out
