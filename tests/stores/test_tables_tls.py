"""Tables over TLS, with what docs/tables.md says that verifies the server."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

import lockkit
from lockkit.testing.servers import MariaDBServer, PostgresServer


class Certificate(NamedTuple):
    """Signed by itself, so it is its own authority."""

    path: Path
    key: Path


@pytest.fixture(scope="module")
def make() -> Iterator[Callable[[str, str], Certificate]]:
    """Where the servers' users can read them."""
    folder = Path(tempfile.mkdtemp(prefix="lockkit-tls-"))
    folder.chmod(0o755)

    def made(name: str, user: str) -> Certificate:
        found = Certificate(folder / f"{name}.crt", folder / f"{name}.key")
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-days", "2", "-subj", "/CN=locks", "-addext", "subjectAltName=IP:127.0.0.1",
             "-keyout", str(found.key), "-out", str(found.path)],
            check=True, capture_output=True,
        )  # fmt: skip
        found.key.chmod(0o600)
        if os.geteuid() == 0:
            os.chown(found.key, pwd.getpwnam(user).pw_uid, -1)
        return found

    yield made
    shutil.rmtree(folder)


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def served(
    request: pytest.FixtureRequest, make: Callable[[str, str], Certificate]
) -> Iterator[tuple[str, Certificate, Certificate]]:
    """What verifies, but for the path; the server's certificate, and another one."""
    with ExitStack() as stack:
        if request.param == "postgresql":
            own, other = make("postgresql", "postgres"), make("other", "postgres")
            postgres = PostgresServer(
                "ssl=on", f"ssl_cert_file={own.path}", f"ssl_key_file={own.key}"
            )
            url = stack.enter_context(postgres).url
            yield f"{url}?sslmode=verify-full&sslrootcert=", own, other
        else:
            own, other = make("mariadb", "mysql"), make("other", "mysql")
            mariadb = MariaDBServer(f"--ssl-cert={own.path}", f"--ssl-key={own.key}")
            url = stack.enter_context(mariadb).url
            yield f"{url}?ssl_ca=", own, other


def test_a_server_that_is_verified(served: tuple[str, Certificate, Certificate]) -> None:
    url, own, _ = served
    with lockkit.connect(f"{url}{own.path}") as client:
        client.store.create_table()  # type: ignore[attr-defined]
        with client.lock("a") as lease:
            lease.extend()


def test_a_server_that_is_another(served: tuple[str, Certificate, Certificate]) -> None:
    url, _, other = served
    with (
        lockkit.connect(f"{url}{other.path}") as client,
        pytest.raises(lockkit.BackendUnavailable, match=r"(?i)certificate verify failed"),
    ):
        client.lock("a").acquire()


def test_a_server_with_another_name(served: tuple[str, Certificate, Certificate]) -> None:
    url, own, _ = served
    with (
        lockkit.connect(f"{url}{own.path}".replace("@127.0.0.1", "@localhost")) as client,
        pytest.raises(lockkit.BackendUnavailable, match=r"(?i)does not match|not valid for"),
    ):
        client.lock("a").acquire()
