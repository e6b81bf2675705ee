"""Databases over TLS: which servers have to prove who they are, and what a URL can say of it."""

from __future__ import annotations

import importlib.metadata
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import NamedTuple

import mysqlclient
import pytest
import sqlalchemy

import lockkit
from lockkit.model.errors import ConfigurationError
from lockkit.stores.tls import for_libpq, for_mysql, remedy
from lockkit.testing.servers import MariaDBServer, PostgresServer

ELSEWHERE = "@0.0.0.0"
"""It leads to this host as well, but does not say so."""

DISTRUSTED = "(?i)verify failed|self-signed certificate"
RENAMED = "(?i)does not match|not valid for|validation of SSL server certificate failed"


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
             "-nodes", "-days", "2", "-subj", "/CN=locks", "-addext",
             "subjectAltName=IP:127.0.0.1,IP:0.0.0.0", "-keyout", str(found.key),
             "-out", str(found.path)],
            check=True, capture_output=True,
        )  # fmt: skip
        found.key.chmod(0o600)
        if os.geteuid() == 0:
            os.chown(found.key, pwd.getpwnam(user).pw_uid, -1)
        return found

    yield made
    shutil.rmtree(folder)


class Served(NamedTuple):
    """A server that speaks TLS, and what its URL says of it."""

    url: str
    authority: str  #: and the path of the certificate that is trusted
    plain: str  #: without TLS
    anybody: str  #: TLS with whomever, if the driver can
    own: Certificate
    other: Certificate

    def at(self, *more: str, host: str = ELSEWHERE) -> str:
        first, *others = [each for each in more if each] or [""]
        query = "&".join([first, *others])
        return self.url.replace("@127.0.0.1", host) + (f"?{query}" if query else "")


@pytest.fixture(scope="module", params=["postgresql", "mysql"])
def served(
    request: pytest.FixtureRequest, make: Callable[[str, str], Certificate]
) -> Iterator[Served]:
    with ExitStack() as stack:
        if request.param == "postgresql":
            own, other = make("postgresql", "postgres"), make("other", "postgres")
            postgres = PostgresServer(
                "ssl=on", f"ssl_cert_file={own.path}", f"ssl_key_file={own.key}"
            )
            url = stack.enter_context(postgres).url
            said = "sslrootcert=", "sslmode=disable", "sslmode=require"
        else:
            own, other = make("mariadb", "mysql"), make("other", "mysql")
            mariadb = MariaDBServer(f"--ssl-cert={own.path}", f"--ssl-key={own.key}")
            url = stack.enter_context(mariadb).url.replace("mysql", request.param, 1)
            anybody = "ssl_mode=required" if request.param == "mysql" else ""
            said = "ssl_ca=", "ssl_mode=DISABLED", anybody
        with lockkit.connect(url) as client:
            client.store.create_table()
        yield Served(url, *said, own, other)


by_mode = pytest.mark.parametrize("mode", ["", "mode=advisory"], ids=["table", "session"])
every_way = pytest.mark.parametrize(
    ("served", "mode"),
    [
        *product(["postgresql", "mysql"], ["", "mode=advisory"]),
        *product(mysqlclient.SCHEMES[1:], [""]),
    ],
    indirect=["served"],
    scope="module",  # so that tests of one server come together
)


@pytest.fixture
def trusting(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """This Python trusts the other authority, and libpq has no file of its own."""
    monkeypatch.setenv("SSL_CERT_FILE", str(served.other.path))
    monkeypatch.setenv("HOME", "/nonexistent")


def by_socket(served: Served) -> bool:
    """Whether its driver takes localhost for the name of a socket file."""
    return "mysqldb" in served.url


def lock(url: str) -> None:
    with lockkit.connect(url) as client, client.lock("a") as lease:
        lease.extend()


@every_way
@pytest.mark.usefixtures("trusting")
def test_a_server_that_is_verified(served: Served, mode: str) -> None:
    lock(served.at(mode, f"{served.authority}{served.own.path}"))


@every_way
@pytest.mark.usefixtures("trusting")
def test_a_server_whom_this_python_trusts(
    served: Served, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(served.own.path))
    lock(served.at(mode))


@every_way
@pytest.mark.usefixtures("trusting")
def test_a_server_that_is_another(served: Served, mode: str) -> None:
    for said in ("", f"{served.authority}{served.other.path}"):
        with pytest.raises(lockkit.BackendUnavailable, match=DISTRUSTED) as refused:
            lock(served.at(mode, said))
        assert served.plain in str(refused.value)
        assert served.authority in str(refused.value)


@pytest.mark.usefixtures("trusting")
def test_each_client_reads_anew_whom_to_trust(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of one URL, which share their sessions while one of them is open."""
    url = served.at("mode=advisory")
    monkeypatch.setenv("SSL_CERT_FILE", str(served.own.path))
    with lockkit.connect(url) as client, client.lock("b"):
        monkeypatch.setenv("SSL_CERT_FILE", str(served.other.path))
        with pytest.raises(lockkit.BackendUnavailable, match=DISTRUSTED):
            lock(url)


@pytest.mark.parametrize(
    "served", ["postgresql", *mysqlclient.SCHEMES], indirect=True, scope="module"
)
@pytest.mark.usefixtures("trusting")
def test_a_server_that_is_another_and_named_after_the_question_mark(served: Served) -> None:
    with pytest.raises(lockkit.BackendUnavailable, match=DISTRUSTED):
        lock(served.at("host=0.0.0.0", host="@127.0.0.1"))


@every_way
@pytest.mark.usefixtures("trusting")
def test_a_server_with_another_name(served: Served, mode: str) -> None:
    host = "@127.1" if by_socket(served) else "@localhost"
    with pytest.raises(lockkit.BackendUnavailable, match=RENAMED):
        lock(served.at(mode, f"{served.authority}{served.own.path}", host=host))


@every_way
@pytest.mark.usefixtures("trusting")
def test_what_a_url_can_do_without(served: Served, mode: str) -> None:
    for said in filter(None, (served.plain, served.anybody)):
        lock(served.at(mode, said))


@every_way
@pytest.mark.usefixtures("trusting")
def test_a_server_on_this_host_need_not_prove_who_it_is(served: Served, mode: str) -> None:
    for host in ("@127.0.0.1",) if by_socket(served) else ("@127.0.0.1", "@localhost"):
        lock(served.at(mode, host=host))


@pytest.mark.usefixtures("trusting")
def test_the_tables_of_an_engine_are_reached_as_it_says(served: Served) -> None:
    vendor = "postgresql+psycopg" if "postgres" in served.url else "mysql+pymysql"
    engine = sqlalchemy.create_engine(f"{vendor}://{served.at().partition('://')[2]}")
    with lockkit.connect("sqlalchemy://", options={"engine": engine}) as client:
        client.lock("a").acquire().release()
    engine.dispose()


@by_mode
def test_a_server_that_speaks_no_tls(
    postgres_server: PostgresServer, mariadb_server: MariaDBServer, mode: str
) -> None:
    schemes = ["mysql"] if mode else mysqlclient.SCHEMES
    for url, plain in (
        (postgres_server.url, "sslmode=disable"),
        *((mariadb_server.url.replace("mysql", s, 1), "ssl_mode=DISABLED") for s in schemes),
    ):
        with pytest.raises(lockkit.BackendUnavailable, match=plain):
            lock(f"{url.replace('@127.0.0.1', ELSEWHERE)}?{mode}")


@pytest.mark.parametrize(
    ("text", "helps"),
    [
        ("SSL error: certificate verify failed", True),
        ('root certificate file "/x/root.crt" does not exist', True),
        ("server does not support SSL, but SSL was required", True),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1000)", True),
        ("TLS/SSL error: SSL is required, but the server does not support it", True),
        ("SSL connection error: error:0A000086", True),
        ('no pg_hba.conf entry for host "10.0.0.7", user "shop", SSL encryption', False),
        ("SSL SYSCALL error: EOF detected", False),
        ("connection to server at 'ssl-db.example' failed: Connection refused", False),
    ],
)
def test_the_hint_about_authorities_is_for_those_whom_it_helps(text: str, helps: bool) -> None:
    assert bool(remedy(text)) is helps


@by_mode
def test_a_driver_that_would_go_on_without_tls_is_refused(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", {"PyMySQL": "1.1.3"}.__getitem__)
    with pytest.raises(ConfigurationError, match="upgrade PyMySQL"):
        lock(f"mysql://shop.example/shop?{mode}")


@by_mode
def test_what_the_environment_of_libpq_says(
    lock_table_url: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSSLMODE", "disable")
    lock(f"{lock_table_url.replace('@127.0.0.1', ELSEWHERE)}?{mode}")


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("mysql://127.0.0.1/shop?ssl_mode=on", "VERIFY_IDENTITY"),
        ("mysql://127.0.0.1/shop?mode=advisory&ssl_mode=on", "VERIFY_IDENTITY"),
        ("mysql://127.0.0.1/shop?ssl_ca=/nonexistent", "cannot be read"),
        ("mysql://127.0.0.1/shop?mode=row&ssl_ca=/nonexistent", "cannot be read"),
        ("mysql://127.0.0.1/shop?ssl_key=/nonexistent", "without its certificate"),
        ("mysql+mysqldb://127.0.0.1/shop?mode=row", "another driver than PyMySQL"),
        ("mysql+mysqldb://127.0.0.1/shop?ssl_mode=required", "but mysqlclient goes on without TLS"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(url: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        lockkit.connect(url)


def test_mysqlclient_is_told_no_file_where_it_is_to_do_without_tls() -> None:
    """Told of one, its library speaks TLS."""
    said = {"ssl_mode": "disabled", "ssl_ca": "/ca"}
    assert for_mysql("mysqldb", "shop.example", said, "default") == {"ssl_mode": "DISABLED"}


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("", True), ("/run/postgresql", True), ("localhost", True), ("127.1.2.3", True),
        ("::1", True), ("0.0.0.0", False), ("10.0.0.1", False), ("shop.example", False),
    ],
)  # fmt: skip
def test_what_counts_as_this_host(host: str, here: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/nonexistent")
    said = for_libpq({"host": host})
    assert (said == {}) is here
    assert for_libpq({"host": f"/run/postgresql,{host}"}) == said
    assert for_libpq({"hostaddr": host, "host": "shop.example"} if host else {}) == said
    assert for_libpq({"host": host, "service": "shop"}) == {}
    assert for_libpq({"host": host, "sslrootcert": "/ca"}) == {"sslmode": "verify-full"}


@pytest.mark.parametrize(("host", "here"), [("localhost", True), ("shop.example", False)])
def test_several_hosts_with_their_ports(host: str, here: bool) -> None:
    """As SQLAlchemy reads them after the question mark."""
    assert (for_libpq({"host": ("127.0.0.1:5433", f"{host}:5432")}) == {}) is here


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    assert for_libpq({"host": "shop.example"})["sslmode"] == "verify-full"


def test_a_home_that_may_not_be_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object, **_: object) -> None:
        raise PermissionError(f"{path} may not be searched")

    monkeypatch.setattr(os, "stat", refuse)
    assert for_libpq({"host": "shop.example"})["sslmode"] == "verify-full"
