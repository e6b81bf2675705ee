"""``locks ddl``: what it prints makes the tables, in the servers' own clients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import lockkit_process, locks

import lockkit
from lockkit.testing.servers import MariaDBServer, PostgresServer


@pytest.mark.parametrize("mode", ["table", "row"])
def test_psql_takes_it(postgres_url: str, postgres_server: PostgresServer, mode: str) -> None:
    url = f"{postgres_url}?mode={mode}"
    printed = lockkit_process("--url", url, "locks", "ddl")
    assert printed.returncode == 0, printed.stderr
    postgres_server.execute(printed.stdout, postgres_url)
    with lockkit.connect(url) as client:
        client.lock("a").acquire().release()


def test_mariadb_takes_it(mariadb_url: str, mariadb_server: MariaDBServer) -> None:
    printed = lockkit_process("--url", mariadb_url, "locks", "ddl")
    assert printed.returncode == 0, printed.stderr
    mariadb_server.execute(f"USE {mariadb_url.rpartition('/')[2]};\n{printed.stdout}")
    with lockkit.connect(mariadb_url) as client:
        client.lock("a").acquire().release()


def test_a_server_is_not_needed_and_a_password_not_shown() -> None:
    url = "postgresql://user:canary@127.0.0.1:1/nothing-is-there"
    printed = lockkit_process("--url", url, "locks", "ddl")
    assert printed.returncode == 0
    assert "CREATE TABLE IF NOT EXISTS lockkit_lock" in printed.stdout
    assert "canary" not in printed.stdout + printed.stderr


def test_an_alias_without_a_table_says_so() -> None:
    def memory() -> lockkit.LockClient:
        return lockkit.connect("memory://")

    aliases: dict[str, Callable[[], lockkit.LockClient]] = {"default": memory, "other": memory}
    printed = locks(aliases, "ddl", "--alias", "other")
    assert printed.out == "-- alias other (memory://): needs no table, or makes it itself\n\n"
    assert locks(aliases, "ddl", "--alias", "nobody").status == 2


def test_a_file_need_not_be_there(tmp_path: Path) -> None:
    printed = lockkit_process("--url", f"sqlite:///{tmp_path}/new.db", "locks", "ddl")
    assert printed.returncode == 0, printed.stderr
    assert "needs no table, or makes it itself" in printed.stdout
    assert not [*tmp_path.iterdir()]
