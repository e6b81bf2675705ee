"""PostgreSQL."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from lockkit.testing.servers.base import (
    HOST,
    MissingServer,
    Server,
    ServerFailed,
    as_user,
    find_program,
    run,
)

USER = "postgres"
# These are test data: what is committed survives a killed server, but not a crash of the host.
FAST = (
    "fsync=off",
    "full_page_writes=off",
    "shared_buffers=32MB",
    "autovacuum=off",
    "max_connections=200",
)


class PostgresServer(Server):
    """Debian's PostgreSQL; as root it runs as the user ``postgres``.

    ``options`` are settings ("idle_in_transaction_session_timeout=1s").
    """

    ready: ClassVar[str] = "database system is ready to accept connections"
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT  # do not wait for clients
    abort_signal: ClassVar[signal.Signals] = signal.SIGQUIT

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        return f"postgresql://{USER}@{HOST}:{self.port}/{database}"

    def create_database(self) -> str:
        """Make an empty database and return its URL."""
        name = f"lockkit_{secrets.token_hex(6)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url_of(name)

    def drop_database(self, url: str) -> None:
        """Drop what create_database() made, even if clients are still connected to it."""
        self.execute(f"DROP DATABASE IF EXISTS {url.rpartition('/')[2]} WITH (FORCE)")

    def execute(self, sql: str, url: str | None = None) -> str:
        """Run SQL with psql and return its bare output."""
        command = [_program("psql"), "-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1"]
        return run([*command, "-c", sql, url or self.url], self.directory).strip()

    def backends(self) -> list[int]:
        """The IDs of the processes that serve clients."""
        sql = (
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' "
            "AND pid <> pg_backend_pid()"
        )
        return [int(pid) for pid in self.execute(sql).split()]

    def kill_backend(self, pid: int) -> None:
        """Send SIGKILL to one of ``backends``. PostgreSQL then ends all others and recovers.

        Returns after the recovery: PostgreSQL 15 may hang if it is told to stop during it.
        """
        if pid not in self.backends():
            raise ServerFailed(f"{pid} serves no client of this server")
        times = self._log.times_ready
        os.kill(pid, signal.SIGKILL)
        self._wait_until_ready(times + 1)

    def prepare(self) -> None:
        data = str(self.directory / "data")
        run(
            [
                *as_user(USER, self.directory),
                _program("initdb"),
                "--no-sync",
                "--auth=trust",
                f"--username={USER}",
                "--encoding=UTF8",
                "--locale=C",
                f"--pgdata={data}",
            ],
            self.directory,
        )

    def command(self) -> Sequence[str]:
        settings = [
            *FAST,
            f"listen_addresses={HOST}",
            f"unix_socket_directories={self.directory}",
            *self.options,
        ]
        return [
            *as_user(USER, self.directory),
            _program("postgres"),
            "-D",
            str(self.directory / "data"),
            "-p",
            str(self.port),
            *(part for setting in settings for part in ("-c", setting)),
        ]


def _program(name: str) -> str:
    debian = Path("/usr/lib/postgresql")
    versions = sorted(debian.glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    found = find_program(name, *map(str, versions))
    if found is None:
        raise MissingServer("PostgreSQL", "apt-get install --yes postgresql")
    return found
