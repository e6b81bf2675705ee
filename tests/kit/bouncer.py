"""PgBouncer, from Debian's package, in front of a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from lockkit.testing.servers import MissingServer, PostgresServer, Server
from lockkit.testing.servers.base import HOST, as_user, find_program

USER = "postgres"


class BouncerServer(Server):
    """``pool_mode``: session or transaction."""

    ready: ClassVar[str] = "process up"

    def __init__(self, server: PostgresServer, pool_mode: str) -> None:
        super().__init__()
        self.server = server
        self.pool_mode = pool_mode

    @property
    def url(self) -> str:
        return self.of(self.server.url)

    def of(self, url: str) -> str:
        """The same database, by way of this pooler."""
        return url.replace(f":{self.server.port}", f":{self.port}")

    def prepare(self) -> None:
        self._file("users.txt").write_text(f'"{USER}" ""\n', encoding="utf-8")
        self._file("pgbouncer.ini").write_text(
            f"""[databases]
* = host={HOST} port={self.server.port}
[pgbouncer]
listen_addr = {HOST}
listen_port = {self.port}
unix_socket_dir =
auth_type = trust
auth_file = {self._file("users.txt")}
pool_mode = {self.pool_mode}
""",
            encoding="utf-8",
        )

    def command(self) -> Sequence[str]:
        program = find_program("pgbouncer")
        if program is None:
            raise MissingServer("PgBouncer", "apt-get install --yes pgbouncer")
        return [*as_user(USER, self.directory), program, str(self._file("pgbouncer.ini"))]

    def _file(self, name: str) -> Path:
        return self.directory / name
