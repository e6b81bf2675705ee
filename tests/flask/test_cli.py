"""``flask locks``. What the command does is tested with the core; here, that it is mounted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from lockkit_flask import locks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from flask import Flask


def test_it_lists_the_locks_of_every_alias(make_app: Callable[..., Flask]) -> None:
    app = make_app(LOCKKIT={"reports": "memory://"})
    with app.app_context(), locks["default"].lock("a"), locks["reports"].lock("b"):
        result = app.test_cli_runner().invoke(args=["locks", "--format", "json"])
    assert result.exit_code == 0
    assert "a" in result.output
    assert "reports" in result.output


def test_exit_statuses_are_those_of_the_command(make_app: Callable[..., Flask]) -> None:
    app = make_app(LOCKKIT={"down": "redis://127.0.0.1:1/0"})
    runner = app.test_cli_runner()
    assert runner.invoke(args=["locks", "--no-such-option"]).exit_code == 2
    assert runner.invoke(args=["locks"]).exit_code == 69
    assert "--stuck" in runner.invoke(args=["locks", "--help"]).output


def test_arguments_of_a_child_pass_unchanged(make_app: Callable[..., Flask]) -> None:
    app = make_app(LOCKKIT_URL=None)
    line = ["locks", "run", "nightly", "--", sys.executable, "-c", "raise SystemExit(7)"]
    assert app.test_cli_runner().invoke(args=line).exit_code == 7


def test_as_a_program(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from flask import Flask\n"
        "from lockkit_flask import LockKit\n"
        "app = Flask(__name__)\n"
        "LockKit(app)\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "LOCKKIT_URL"}
    command = [sys.executable, "-m", "flask", "--app", str(tmp_path / "shop.py"), "locks"]
    done = subprocess.run(
        [*command, "--format", "json"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) is not None
