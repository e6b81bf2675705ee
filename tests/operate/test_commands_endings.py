"""How ``locks`` ends if stores are down, refuse or are slow; and what it logs."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from command_line import dead_port, hold, locks, start

import lockkit
import lockkit.aio
from lockkit.leases.client import LockClient
from lockkit.model.errors import BackendUnavailable, ConfigurationError
from lockkit.model.types import LockInfo
from lockkit.operate.commands import OrderRecords, run
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import RedisServer


@pytest.fixture
def gone() -> LockClient:
    return lockkit.connect(f"redis://127.0.0.1:{dead_port()}/0")


def test_fail_on_stuck_survives_a_reader_that_has_enough(url: str) -> None:
    client = lockkit.connect(url)
    for number in range(200):
        hold(client, f"job:{number}")
    client.close()
    stuck = ("--fail-on-stuck", "--older-than", "0")
    for argv, status in ((stuck, 3), (("--fail-on-stuck", "--match", "job:*"), 0)):
        with start(*argv, url=url) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            said = process.stderr.read()
        assert (process.returncode, said) == (status, "")


class Records(NamedTuple):
    """Those of orders in one database."""

    expired: int = 0
    damaged: tuple[str, ...] = ()
    fault: str = ""

    def prune(self, batch: int) -> Iterator[int]:
        assert batch
        if self.fault:
            raise ConfigurationError(self.fault)
        if self.expired < 0:
            raise BackendUnavailable("connection refused")
        yield self.expired

    def unreadable(self) -> Iterator[str]:
        yield from self.damaged

    def is_unreadable(self, key: str) -> bool:
        if self.expired < 0:
            raise BackendUnavailable("connection refused")
        return key in self.damaged

    def repair(self, key: str) -> bool:
        return self.is_unreadable(key)


class Unread(io.StringIO):
    """Its reader has gone."""

    def flush(self) -> None:
        raise BrokenPipeError


def prune(out: io.StringIO, *tables: Records, argv: Sequence[str] = ()) -> tuple[int, str]:
    err = io.StringIO()
    named: Any = {f"db{number}": table for number, table in enumerate(tables)}
    found = OrderRecords(named, tuple(named))
    status = run(["prune", *argv], {}, stdout=out, stderr=err, records=lambda: found)
    return status, err.getvalue()


def test_prune_ends_with_the_gravest_of_several_databases() -> None:
    down, damaged, well = Records(-1), Records(2, ("a17",)), Records(3)
    assert prune(io.StringIO(), well, down)[0] == 69
    for tables in (damaged, down, well), (down, well, damaged):
        assert prune(io.StringIO(), *tables)[0] == 3


def test_prune_goes_on_after_a_database_without_the_table() -> None:
    out = io.StringIO()
    assert prune(out, Records(fault="there is no table"), Records(3)) == (
        1,
        "database db0: there is no table\n",
    )
    assert out.getvalue() == "db1: 3 expired order records deleted\n"


def test_prune_does_not_count_in_a_database_that_is_down() -> None:
    out = io.StringIO()
    assert prune(out, Records(-1))[0] == 69
    assert out.getvalue() == ""


def test_prune_goes_on_if_nobody_reads() -> None:
    status, err = prune(Unread(), Records(2), Records(3, ("a17",)))
    assert status == 3
    assert "order:a17 cannot be read" in err


ORDER = f"order:{'a' * 64}"
REPAIR = ("--unreadable", ORDER)
BROKEN = Records(damaged=("a" * 64,))


@pytest.mark.parametrize(
    ("more", "status", "says"),
    [
        ([], 2, "there is no terminal to ask on: use --yes"),
        (["--yes", "--dry-run"], 0, "not deleted: this was a dry run"),
    ],
)
def test_a_record_is_not_deleted_unasked(
    more: list[str], status: int, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    ended, err = prune(io.StringIO(), BROKEN, argv=[*REPAIR, *more])
    assert (ended, says in err) == (status, True)
    assert caplog.messages == []


def test_a_record_that_is_deleted_is_on_record(caplog: pytest.LogCaptureFixture) -> None:
    """Also if another database is down."""
    out = io.StringIO()
    argv = [*REPAIR, "--yes", "--reason", "ticket"]
    ended, err = prune(out, BROKEN, Records(-1), Records(), argv=argv)
    assert (ended, err) == (69, "database db1: connection refused\n")
    assert out.getvalue() == f"db0: the record of {ORDER} cannot be read\ndeleted\n"
    (line,) = caplog.messages
    assert line.startswith("locks prune --unreadable: outcome=deleted operator=")
    assert line.endswith(f" database=db0 name={ORDER} reason=ticket")


def test_what_prunes_is_not_asked_for_consent() -> None:
    """A dry run that deletes what has expired would be none."""
    out = io.StringIO()
    assert prune(out, Records(2), argv=["--dry-run"])[0] == 2
    assert out.getvalue() == ""


def test_stuck_and_down_are_told_apart(memory: LockClient, gone: LockClient) -> None:
    hold(memory, "job")
    both = {"default": lambda: memory, "reports": lambda: gone}
    assert locks(both, "--fail-on-stuck").status == 69
    found = locks(both, "--fail-on-stuck", "--older-than", "0")
    assert found.status == 3
    assert "alias reports: its store is down" in found.err


def test_a_wrong_password_is_not_down(redis_url: str, memory: LockClient) -> None:
    with_password = redis_url.replace("redis://", "redis://:canary@", 1)
    refused = lockkit.connect(with_password)
    both = {"default": lambda: refused, "other": lambda: memory}
    shown = locks(both)
    assert shown.status == 1
    assert "its store refused the request" in shown.err
    assert "password" in shown.err
    assert "down" not in shown.err
    assert "canary" not in shown.err
    with pytest.raises(lockkit.StoreRefused):
        refused.lock("x").acquire()
    run = locks({"default": lambda: refused}, "run", "x", "--", "true")
    assert run.status == 1
    refused.close()


def test_nor_is_a_password_that_is_missing() -> None:
    """A server closes the connection of somebody unknown who makes a long request, so that its
    words may be lost."""
    with RedisServer(password="sesame") as server, FaultProxy("127.0.0.1", server.port) as proxy:
        proxy.drop_replies(100, matching=b"EVALSHA")
        client = lockkit.connect(f"redis://127.0.0.1:{proxy.port}")
        shown = locks(client)
        assert (shown.status, "its store refused the request" in shown.err) == (1, True)
        with pytest.raises(
            lockkit.StoreRefused, match=r"wants a password: .*redis://:password@host"
        ):
            client.lock("x").acquire(timeout=0)
        client.close()

        async def in_loop() -> None:
            in_loop = lockkit.aio.connect(f"redis://127.0.0.1:{proxy.port}")
            with pytest.raises(lockkit.StoreRefused, match=r"OPTIONS\['password'\].* \(NOAUTH\)"):
                await in_loop.lock("x").acquire(timeout=0)
            await in_loop.close()

        asyncio.run(in_loop())


def test_nor_is_a_database_that_is_not_there(redis_url: str) -> None:
    client = lockkit.connect(redis_url.rpartition("/")[0] + "/4242")
    assert locks(client).status == 1
    client.close()


def test_nor_is_a_missing_database_of_postgresql(lock_table_url: str) -> None:
    client = lockkit.connect(f"{lock_table_url.rpartition('/')[0]}/nobody-made-it")
    shown = locks(client)
    assert (shown.status, "its store refused the request" in shown.err) == (1, True)
    client.close()


def test_nor_is_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("not a database, and long enough to be read as one\n" * 40)
    client = lockkit.connect(f"sqlite:///{tmp_path}/notes")
    assert locks(client).status == 1
    client.close()


def test_a_cron_job_without_streams_ends_as_any_other(url: str) -> None:
    client = lockkit.connect(url)
    hold(client, "stock:42")
    command = f"{sys.executable} -m lockkit --url {url} locks --fail-on-stuck --older-than 0"
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        assert subprocess.run(["sh", "-c", f"{command} {closed}"], check=False).returncode == 3
    assert subprocess.run(["sh", "-c", f"{command} --nonsense 2>&-"], check=False).returncode == 2
    client.close()


class Slow(LockClient):
    """Its store answers only when it may."""

    def __init__(self, client: LockClient, may: threading.Event) -> None:
        super().__init__(client.store, client.settings)
        self._may = may

    def _pages(self, name: str | None) -> Iterator[list[LockInfo]]:
        assert self._may.wait(10)
        yield from super()._pages(name)


def test_aliases_are_read_side_by_side(memory: LockClient) -> None:
    """The first answers only once the second has been asked; and what is there is shown."""
    asked, shown = threading.Event(), threading.Event()
    slow = Slow(memory, shown)

    class Second(LockClient):
        def _pages(self, name: str | None) -> Iterator[list[LockInfo]]:
            asked.set()
            yield from super()._pages(name)
            shown.set()

    other = lockkit.connect("memory://")
    second = Second(other.store, other.settings)
    hold(memory, "of the slow one")
    hold(other, "of the fast one")
    found = locks({"slow": lambda: slow, "fast": lambda: second}, "--format", "json")
    assert asked.is_set()
    assert sorted(found.names) == ["of the fast one", "of the slow one"]


def test_a_store_that_can_list_nothing_is_no_error_beside_one_that_can(memory: LockClient) -> None:
    """Or cron would report an error for ever."""
    with lockkit.connect("redlock://a,b,c") as votes:
        both = {"default": lambda: memory, "votes": lambda: votes}
        listed = locks(both, "--stuck", "--fail-on-stuck")
        assert listed.status == 0
        assert "alias votes: " in listed.err
        assert "nothing matches in default (memory://" in listed.err
        assert "redlock://" not in listed.err
        shown = locks(both, "show", "x")
        assert (shown.status, "x is free in memory://" in shown.out) == (0, True)
        assert list(json.loads(locks(both, "--format", "json").out)["down"]) == ["votes"]
        for argv in ("--alias", "votes"), ("show", "x", "--alias", "votes"):
            assert locks(both, *argv).status == 1
        assert locks(votes).status == 1


def test_a_limit_ends_the_look_before_all_have_answered(memory: LockClient) -> None:
    never = threading.Event()
    slow = Slow(memory, never)
    hold(memory, "job")
    both = {"fast": lambda: memory, "slow": lambda: slow}
    found = locks(both, "--format", "json", "--limit", "1")
    never.set()
    assert list(json.loads(found.out)["stores"]) == ["fast"]


def test_a_defect_of_one_reader_is_raised(memory: LockClient) -> None:
    class Broken(LockClient):
        def _pages(self, name: str | None) -> Iterator[list[LockInfo]]:
            raise AssertionError(name)

    broken = Broken(memory.store, memory.settings)
    with pytest.raises(AssertionError):
        locks({"default": lambda: memory, "broken": lambda: broken})


def test_release_says_what_it_did_not_do(memory: LockClient, gone: LockClient) -> None:
    hold(memory, "x")
    both = {"default": lambda: memory, "reports": lambda: gone}
    refused = locks(both, "release", "x", "--yes")
    assert refused.status == 69
    assert (
        "nothing was released: x is in default, and may be in reports as well. "
        "Choose one with --alias"
    ) in refused.err
    assert memory.inspect("x") is not None
    free = locks(both, "release", "y", "--yes")
    assert "nothing was released: y may be in reports. Choose one with --alias" in free.err


@pytest.mark.parametrize("options", [[], ["--alias", "reports"]])
def test_with_one_alias_there_is_nothing_to_choose(
    memory: LockClient, gone: LockClient, options: list[str]
) -> None:
    clients = {"reports": lambda: gone} | ({"default": lambda: memory} if options else {})
    refused = locks(clients, "release", "y", "--yes", *options)
    assert refused.status == 69
    assert "nothing was released: y may be in reports" in refused.err
    assert "Choose one" not in refused.err


def test_a_store_that_can_list_nothing_does_not_keep_a_name_of_another(memory: LockClient) -> None:
    """It is told that it was not looked into."""
    hold(memory, "x")
    with lockkit.connect("redlock://a,b,c") as votes:
        both = {"default": lambda: memory, "votes": lambda: votes}
        done = locks(both, "release", "x", "--yes")
        assert (done.status, done.err.startswith("alias votes: ")) == (0, True)
        assert memory.inspect("x") is None
        assert locks(both, "release", "x", "--yes", "--alias", "votes").status == 1
        alone = locks({"votes": lambda: votes}, "release", "x", "--yes")
        assert (alone.status, "x may be in votes" in alone.err) == (1, True)


def test_the_record_says_who_and_why(
    memory: LockClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_USER", "ann\nforged")
    hold(memory, "x")
    with caplog.at_level(logging.WARNING, "lockkit.audit"):
        done = locks(memory, "release", "x", "--yes", "--reason", "ticket 7\n\x1b[2J")
    assert done.status == 0
    (line,) = caplog.messages
    assert f" uid={os.getuid()} sudo_user=ann\\x0aforged alias=default name=x " in line
    assert line.endswith(r' reason="ticket 7\x0a\x1b[2J"')


def test_without_sudo_nothing_is_said_of_it(url: str) -> None:
    client = lockkit.connect(url)
    hold(client, "x")
    client.close()
    clean = {key: value for key, value in os.environ.items() if key != "SUDO_USER"}
    command = [sys.executable, "-m", "lockkit", "--url", url, "locks", "release", "x", "--yes"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env=clean)
    assert "sudo_user" not in ended.stderr
    assert f"uid={os.getuid()} alias=default" in ended.stderr
