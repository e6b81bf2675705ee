"""MariaDB."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from lockkit.testing.servers.base import HOST, MissingServer, Server, as_user, find_program, run

SYSTEM_USER = "mysql"
FAST = (
    "--innodb-flush-log-at-trx-commit=2",  # commits survive a killed server
    "--innodb-buffer-pool-size=32M",
    "--skip-log-bin",
    "--innodb-log-file-size=16M",
    "--performance-schema=off",
    "--skip-name-resolve",
)


class MariaDBServer(Server):
    """Debian's MariaDB; as root it runs as the user ``mysql``. ``root`` has no password.

    ``options`` are arguments of mariadbd ("--wait-timeout=1").
    """

    ready: ClassVar[str] = "ready for connections"

    @property
    def url(self) -> str:
        return self.url_of("lockkit")

    def url_of(self, database: str) -> str:
        return f"mysql://root@{HOST}:{self.port}/{database}"

    @property
    def socket_path(self) -> Path:
        return self.directory / "mariadb.sock"

    def create_database(self) -> str:
        """Make an empty database and return its URL."""
        name = f"lockkit_{secrets.token_hex(6)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url_of(name)

    def drop_database(self, url: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {url.rpartition('/')[2]}")

    def execute(self, sql: str) -> str:
        """Run SQL with the mariadb client and return its bare output."""
        command = [
            _program("mariadb"),
            "--no-defaults",
            f"--socket={self.socket_path}",
            "--user=root",
            "--batch",
            "--skip-column-names",
            f"--execute={sql}",
        ]
        return run(command, self.directory).strip()

    def prepare(self) -> None:
        install = [
            _program("mariadb-install-db"),
            "--no-defaults",
            "--skip-test-db",
            "--auth-root-authentication-method=normal",
            f"--datadir={self._data}",
            f"--tmpdir={self.directory}",
        ]
        run([*as_user(SYSTEM_USER, self.directory), *install], self.directory)
        start = self.directory / "start.sql"
        start.write_text("CREATE DATABASE IF NOT EXISTS lockkit;\n", encoding="utf-8")

    def command(self) -> Sequence[str]:
        return [
            *as_user(SYSTEM_USER, self.directory),
            _program("mariadbd"),
            "--no-defaults",
            f"--datadir={self._data}",
            f"--tmpdir={self.directory}",  # of its own, because a start empties it
            f"--port={self.port}",
            f"--bind-address={HOST}",
            f"--socket={self.socket_path}",
            f"--pid-file={self.directory / 'mariadb.pid'}",
            f"--init-file={self.directory / 'start.sql'}",
            *FAST,
            *self.options,
        ]

    @property
    def _data(self) -> Path:
        return self.directory / "data"


def _program(name: str) -> str:
    found = find_program(name)
    if found is None:
        raise MissingServer("MariaDB", "apt-get install --yes mariadb-server")
    return found
