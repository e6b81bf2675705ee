"""``python -m lockkit``, for programs without a framework."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import hold, lockkit_process

import lockkit
from lockkit.__main__ import main
from lockkit.testing.servers import RedisServer


@pytest.mark.parametrize("prefix", ["shop", "locks", "run"])
def test_url_and_key_prefix(url: str, prefix: str) -> None:
    client = lockkit.connect(url, key_prefix=prefix)
    hold(client, "stock:42")
    client.close()
    shop = lockkit_process("--url", url, "--key-prefix", prefix, "locks")
    assert "stock:42" in shop.stdout
    assert "stock:42" in lockkit_process("locks", "--url", url, "--key-prefix", prefix).stdout
    assert lockkit_process("--url", url, "locks").stdout == ""


@pytest.mark.parametrize("prefix", [[], ["--key-prefix", "the shop"], ["--key-prefix", ""]])
def test_a_command_for_pasting_names_the_store_that_was_given(
    prefix: list[str], url: str, tmp_path: Path
) -> None:
    with lockkit.connect(url, key_prefix=prefix[-1] if prefix else "lockkit") as client:
        client.lock("stock:42").acquire().release()
    with contextlib.closing(sqlite3.connect(tmp_path / "locks.sqlite3")) as database, database:
        database.execute("UPDATE lockkit_lock SET state = '{', version = version + 1")
    shown = lockkit_process("locks", "--url", url, *prefix).stdout.rpartition(": ")[2]
    command = ["lockkit", "locks", "--url", url, *prefix, "release", "--damaged", "stock:42"]
    assert shlex.split(shown) == command
    assert lockkit_process(*command[1:], "--yes").returncode == 0


def test_a_command_for_pasting_has_no_password(redis_server: RedisServer) -> None:
    redis_server.flush()
    url = redis_server.url.replace("//", "//default:canary@")
    with lockkit.connect(url) as client, redis_server.client() as admin:
        client.lock("stock:42").acquire().release()
        (bucket,) = admin.scan_iter("{lockkit:*}:b")
        admin.hset(bucket, "=stock:42", "damaged")
    shown = lockkit_process("locks", "--url", url)
    assert "lockkit locks --url 'redis://…@127.0.0.1" in shown.stdout
    assert "canary" not in shown.stdout + shown.stderr
    shown = lockkit_process("locks", "--url", f"{url}?socket_timeout=30")
    assert "lockkit locks --url URL release" in shown.stdout  # without its query, it is another


def test_a_file_that_is_not_there_is_not_all_clear(url: str, tmp_path: Path) -> None:
    shown = lockkit_process("--url", url, "locks", "--format", "json")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert f"{os.path.realpath(tmp_path)}/locks.sqlite3 is missing or empty: " in shown.stderr
    assert list(tmp_path.iterdir()) == []
    assert lockkit_process("--url", url, "locks", "run", "job", "--", "true").returncode == 0
    assert lockkit_process("--url", url, "locks").returncode == 0


@pytest.mark.parametrize("driver", ["", "+pysqlite"])
def test_nor_is_one_beside_a_database(driver: str, url: str, tmp_path: Path) -> None:
    table = f"sqlalchemy+{url.replace(':', f'{driver}:', 1)}?timeout=5"
    shown = lockkit_process("--url", table, "locks")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert "/locks.lockkit.sqlite3 is missing or empty: " in shown.stderr
    assert list(tmp_path.iterdir()) == []
    assert lockkit_process("--url", table, "locks", "run", "job", "--", "true").returncode == 0
    assert lockkit_process("--url", table, "locks").returncode == 0


@pytest.mark.parametrize("argv", [[], ["show", "run"], ["--match", "run"]])
def test_nor_is_one_that_the_environment_names(
    argv: list[str], url: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("LOCKKIT_URL", url)
    with pytest.raises(SystemExit) as ended:
        main(["locks", *argv])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert ("is missing or empty" in told, "is not set" in told) == (True, False)
    assert list(tmp_path.iterdir()) == []


def test_nor_is_the_embedded_store_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LOCKKIT_URL", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(SystemExit):
        main(["locks"])
    told = capsys.readouterr().err
    assert told.endswith(": nobody has ever locked there\n")
    assert told.count("LOCKKIT_URL is not set") == told.count("give --url") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("environment", [{}, {"LOCKKIT_URL": ""}, {"LOCKKIT_URL": "bogus://"}])
def test_help_and_usage_errors_need_no_store(environment: dict[str, str], tmp_path: Path) -> None:
    """As on the first day, when nobody has locked yet."""
    environment |= {"XDG_STATE_HOME": str(tmp_path)}
    shown = lockkit_process("locks", "release", "--help", **environment)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith("usage: lockkit locks release")
    for argv, says in (["list", "--bogus"], "arguments: --bogus"), (["run", "x"], "what to run"):
        shown = lockkit_process("locks", *argv, **environment)
        assert (shown.returncode, shown.stdout) == (2, "")
        assert says in shown.stderr
        assert "LOCKKIT_URL" not in shown.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "line",
    [
        ["locks", "run", "job", "--url", "redis://:canary@h/0", "--", "true"],
        ["locks", "run", "job", "--url", "redis://:can ary@h/0", "--", "true"],
        ["locks", "list", "--bogus=redis://:can/ary@h"],
        ["locks", "list", "--bogus=redis://:can@h@ary@h"],
        ["locks", "redis://h/0?password=canary"],
        ["locks", "redis://h/0?password=can ary"],
        ["--urr", "redis://:canary@h", "locks"],
        ["redis://:canary@h", "locks"],
    ],
)
def test_a_url_in_the_wrong_place_shows_no_password(line: list[str]) -> None:
    shown = lockkit_process(*line)
    assert shown.returncode == 2
    assert "redis://" in shown.stderr
    assert "ary" not in shown.stderr + shown.stdout
    assert ("--url and --key-prefix stand before run" in shown.stderr) == ("run" in line)


def test_an_empty_url_is_not_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    """As of a variable of the shell that is not set."""
    with pytest.raises(SystemExit) as ended:
        main(["--url", "", "locks"])
    assert ended.value.code == 2
    assert "the URL is empty" in capsys.readouterr().err


@pytest.mark.parametrize("form", [["--url", "{}"], ["--url={}"]])
def test_options_may_follow_the_command(form: list[str], url: str) -> None:
    client = lockkit.connect(url, key_prefix="shop")
    hold(client, "stock:42")
    client.close()
    options = [text.format(url) for text in form]
    shown = lockkit_process("locks", "show", *options, "stock:42", "--key-prefix", "shop")
    assert "stock:42" in shown.stdout
    print_them = [sys.executable, "-c", "import sys; print(sys.argv[1:])", "--url", "x"]
    for dashes in ([], ["--"]):
        ran = lockkit_process("locks", *options, "run", "job", *dashes, *print_them)
        assert (ran.stdout, ran.stderr) == ("['--url', 'x']\n", "")


def test_version() -> None:
    shown = lockkit_process("--version")
    assert (shown.returncode, shown.stdout) == (0, f"lockkit {lockkit.__version__}\n")


def test_it_works_also_if_the_package_was_copied_without_its_metadata(tmp_path: Path) -> None:
    """Only its version is not known."""
    shutil.copytree(Path(lockkit.__file__).parent, tmp_path / "lockkit")

    def ran(*argv: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-S", "-m", "lockkit", *argv]
        alone = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return subprocess.run(
            command, cwd=tmp_path, env=alone, capture_output=True, text=True, check=False
        )

    job = ran("locks", "--url", f"sqlite:///{tmp_path}/x", "run", "job", "echo", "done")
    assert (job.returncode, job.stdout, job.stderr) == (0, "done\n", "")
    version = ran("--version")
    assert (version.returncode, version.stdout) == (2, "")
    assert "its version is not known" in version.stderr


def test_an_empty_variable_is_an_error() -> None:
    shown = lockkit_process("locks", LOCKKIT_URL="")
    assert shown.returncode == 2
    assert "LOCKKIT_URL is empty in the environment" in shown.stderr


def test_an_empty_key_prefix_is_one(url: str) -> None:
    client = lockkit.connect(url, key_prefix="")
    hold(client, "stock:42")
    client.close()
    assert "stock:42" in lockkit_process("--url", url, "--key-prefix", "", "locks").stdout


def test_lockkit_url(url: str) -> None:
    client = lockkit.connect(url)
    hold(client, "stock:42")
    client.close()
    assert "stock:42" in lockkit_process("locks", LOCKKIT_URL=url).stdout


def test_the_embedded_store_is_the_default(tmp_path: Path) -> None:
    state = {"XDG_STATE_HOME": str(tmp_path)}
    ran = lockkit_process("locks", "run", "job", "--", "true", **state)
    assert ran.returncode == 0
    assert ran.stderr == (
        f"lockkit: LOCKKIT_URL is not set: locks are kept in sqlite:///{tmp_path}/lockkit/"
        "locks.sqlite3, which only this user's processes on this host share. Set it, or give "
        "--url\n"
    )
    assert (tmp_path / "lockkit" / "locks.sqlite3").exists()
    shown = lockkit_process("locks", **state)
    assert shown.returncode == 0
    assert shown.stderr == (  # also by looking: the others may lock elsewhere
        f"{ran.stderr}"
        f"nothing is held in sqlite:///{tmp_path}/lockkit/locks.sqlite3, key prefix 'lockkit'\n"
    )


@pytest.mark.parametrize("argv", [[], ["run", "job", "true"], ["--url", "sqlite:///x"]])
def test_the_missing_word_is_named(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert "missing: lockkit locks, or lockkit locks run NAME" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [[], ["lock"], ["--no-such-option", "locks"]])
def test_usage_errors(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert "usage: lockkit" in capsys.readouterr().err


def test_a_wrong_url_says_so_and_shows_no_password() -> None:
    ended = lockkit_process("--url", "rediss2://user:canary@host/0", "locks")
    assert ended.returncode == 2
    assert "no store has the scheme 'rediss2' of the URL" in ended.stderr
    assert "canary" not in ended.stderr
    ended = lockkit_process("locks", LOCKKIT_URL="rediss2://user:canary@host/0")
    assert ended.returncode == 2
    assert "in LOCKKIT_URL: no store has the scheme 'rediss2'" in ended.stderr
    assert "canary" not in ended.stderr


@pytest.mark.parametrize("url", ["django://default", "django-redis://default"])
def test_a_url_of_django_needs_its_settings(url: str) -> None:
    ended = lockkit_process("--url", url, "locks", DJANGO_SETTINGS_MODULE="")
    assert ended.returncode == 2
    assert "needs Django's settings: set DJANGO_SETTINGS_MODULE, or use" in ended.stderr
    ended = lockkit_process("--url", url, "locks", DJANGO_SETTINGS_MODULE="nobodys.settings")
    assert ended.returncode == 2
    fault = "names settings that cannot be loaded (ModuleNotFoundError): correct it"
    assert f"DJANGO_SETTINGS_MODULE {fault}" in ended.stderr


def test_listing_imports_no_framework_and_no_driver(url: str) -> None:
    lockkit_process("--url", url, "locks", "run", "job", "--", "true")
    program = (
        "import sys; from lockkit.__main__ import main; "
        f"main(['--url', {url!r}, 'locks']); "
        "print(sorted({'django', 'flask', 'click', 'redis', 'asyncio', 'sqlalchemy'}"
        " & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program]
    assert subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL) == "[]\n"
