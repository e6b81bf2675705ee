"""Tables in MariaDB, where its ways are not those of other databases."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import mysqlclient
import pymysql
import pytest
import sqlalchemy as sa
from lock_tables import engine_for, make_table, table_at
from pymysql.constants import CLIENT

import lockkit
from lockkit.model.errors import BackendUnavailable, OutcomeUnknown, StoreRefused
from lockkit.model.types import Busy, Grant, Mode, Release
from lockkit.stores.sessions import pymysql_connection
from lockkit.stores.sessions.attempts import route_of
from lockkit.stores.sql import create_table, engines
from lockkit.stores.sql.connector import Connection, Missed
from lockkit.stores.sql.dialect import load_dialect
from lockkit.stores.sql.vendors import MySQL
from lockkit.testing.conformance.base import eventually
from lockkit.testing.conformance.steps import claim
from lockkit.testing.servers import MariaDBServer

Locks = Callable[..., lockkit.LockClient]
LOOK_ALIKE = ["a", "A", "a ", "\u00e9", "e\u0301", "\u00c9", "\u00df", "ss", "\u2603", "\U0001f512"]


@pytest.fixture(params=mysqlclient.SCHEMES)
def url(request: pytest.FixtureRequest, mariadb_url: str) -> str:
    make_table(mariadb_url)
    return mariadb_url.replace("mysql", request.param, 1)


@pytest.fixture
def engine(url: str) -> Iterator[sa.Engine]:
    engine = engine_for(url)
    yield engine
    engine.dispose()


@pytest.fixture
def locks(url: str) -> Iterator[Locks]:
    with ExitStack() as stack:

        def connected(where: object = url, **options: Any) -> lockkit.LockClient:
            given = {"url": where} if isinstance(where, str) else {"client": where}
            return stack.enter_context(lockkit.connect(**given, **options))  # type: ignore[arg-type]

        yield connected


def made_with(url: str, **arguments: Any) -> sa.Engine:
    """An engine whose connections the application makes by itself."""
    where, dialect = sa.make_url(url), engine_for(url).dialect
    driver: Any = dialect.loaded_dbapi

    def connect() -> Any:
        return driver.connect(
            host=where.host, port=where.port or 0, user=where.username, database=where.database,
            **{"charset": "utf8mb4", **arguments},
        )  # fmt: skip

    return sa.create_engine(f"mysql+{dialect.driver}://", creator=connect)


of_pymysql = pytest.mark.parametrize("url", ["mysql"], indirect=True)
"""It has the server prepare statements; mysqlclient does not."""


@contextmanager
def holding_row(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Somebody has locked all rows of the table, in a transaction."""
    with engine.connect() as other, other.begin():
        other.exec_driver_sql("SELECT * FROM lockkit_lock FOR UPDATE")
        yield other


@pytest.mark.parametrize("flag", [0, CLIENT.FOUND_ROWS], ids=["changed rows", "found rows"])
def test_one_of_many_gets_it_whatever_the_client_counts(url: str, locks: Locks, flag: int) -> None:
    """SQLAlchemy and Django ask for found rows: an upsert that changes nothing then counts one."""
    clients = [locks(made_with(url, client_flag=flag)) for _ in range(4)]
    for turn in range(10):
        with ThreadPoolExecutor() as threads:
            leases = threads.map(lambda c: c.lock(f"n{turn}").try_acquire(), clients)  # noqa: B023
        [lease] = [lease for lease in leases if lease is not None]
        assert lease.release()
        again = clients[0].lock(f"n{turn}").acquire(timeout=0)
        assert again.fencing_token > lease.fencing_token
        assert again.release()


@pytest.mark.parametrize("mode", ["table", "advisory", "row"])
def test_a_driver_that_lacks_what_a_password_needs_is_told(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MySQL asks for RSA, which PyMySQL has from a package that it does not require: then it
    raises an error that is none of its own."""

    def connect(*_: object, **__: object) -> None:
        raise RuntimeError("'cryptography' package is required for caching_sha2_password")

    monkeypatch.setattr(pymysql, "connect", connect)
    url = f"mysql://shop:canary@127.0.0.1/shop?mode={mode}"
    with lockkit.connect(url) as client, pytest.raises(lockkit.BackendUnavailable) as caught:
        client.lock("a").acquire()
    assert "'cryptography' package is required" in str(caught.value)


@pytest.mark.parametrize("mode", ["table", "advisory"])
def test_an_error_of_the_program_is_not_taken_for_one_of_the_driver(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*_: object, **__: object) -> None:
        raise RuntimeError("working outside of application context")

    monkeypatch.setattr(pymysql, "connect", connect)
    url = f"mysql://127.0.0.1/shop?mode={mode}"
    with lockkit.connect(url) as client, pytest.raises(RuntimeError, match="outside of"):
        client.lock("a").acquire()


@pytest.mark.parametrize("code", [1045, 1143, 1251, 1524, 3118])
def test_what_a_server_refuses_is_refused_to_sessions_and_tables(code: int) -> None:
    error = pymysql.OperationalError(code, "words")
    assert type(pymysql_connection.no_connection(error)) is StoreRefused
    assert type(MySQL().no_connection(error)) is StoreRefused
    assert type(MySQL().failure(error, "UPDATE", "")) is StoreRefused


@pytest.mark.parametrize("code", [2013, 2027])
def test_what_a_lost_connection_leaves_unknown(code: int) -> None:
    error = pymysql.OperationalError(code, "words")
    assert type(pymysql_connection.no_connection(error)) is BackendUnavailable
    assert type(MySQL().failure(error, "UPDATE", "")) is OutcomeUnknown


@pytest.mark.parametrize("code", [1020, 1205, 1213, 3101])
def test_what_only_came_at_a_bad_moment_is_tried_again(code: int) -> None:
    """A deadlock, say, or a conflict in a cluster."""
    assert type(MySQL().failure(pymysql.OperationalError(code, "words"), "UPDATE", "")) is Missed


def test_names_that_collations_hold_for_the_same(locks: Locks, url: str) -> None:
    client = locks()
    leases = [client.lock(name).acquire(timeout=0) for name in LOOK_ALIKE]
    assert {info.name for info in client.holders()} == set(LOOK_ALIKE)
    for name, lease in zip(LOOK_ALIKE, leases, strict=True):
        info = client.inspect(name)
        assert info is not None
        assert info.fence == lease.fencing_token
        assert lease.release()


def test_prefixes_that_collations_hold_for_the_same(locks: Locks, engine: sa.Engine) -> None:
    """Also where somebody has made the table with the collation of the database."""
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "ALTER TABLE lockkit_lock CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
        )
    clients = {prefix: locks(key_prefix=prefix) for prefix in ("shop", "Shop", "shop ")}
    leases = [client.lock(prefix).acquire(timeout=0) for prefix, client in clients.items()]
    for prefix, client in clients.items():
        assert [info.name for info in client.holders()] == [prefix]
        others = client.perform(client.store.prefixes())
        assert others == dict.fromkeys(set(clients) - {prefix}, True)
    assert all(lease.release() for lease in leases)


def test_neither_a_lock_nor_its_table_commits_what_the_application_does(
    locks: Locks, engine: sa.Engine
) -> None:
    """In MySQL, CREATE TABLE ends the transaction of its connection."""
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE stock (units int) ENGINE=InnoDB")
    client = locks(engine)
    with engine.connect() as connection:
        transaction = connection.begin()
        connection.exec_driver_sql("INSERT INTO stock VALUES (1)")
        create_table(engine)
        with client.lock("stock"):
            client.store.create_table()
        transaction.rollback()
        assert connection.exec_driver_sql("SELECT count(*) FROM stock").scalar() == 0


@pytest.mark.parametrize("zone", ["+05:30", "-11:00"])
def test_the_clock_has_microseconds_and_no_time_zone(engine: sa.Engine, zone: str) -> None:
    def read(connection: sa.Connection) -> int:
        return int(connection.exec_driver_sql(load_dialect("mysql").clock).scalar() or 0)

    with engine.connect() as connection:
        connection.exec_driver_sql(f"SET time_zone = '{zone}'")
        before = time.time()
        moments = [read(connection) for _ in range(50)]
        assert before - 0.01 <= moments[0] / 1e6 <= moments[-1] / 1e6 <= time.time() + 0.01
        assert len({moment % 1_000_000 for moment in moments}) > 25


def test_fences_of_one_second_grow(locks: Locks) -> None:
    client = locks()
    fences = []
    for _ in range(20):
        with client.lock("a") as lease:
            fences.append(lease.fencing_token)
    assert fences == sorted(set(fences))
    assert abs(fences[-1] / 1e6 - time.time()) < 60


def test_a_row_that_somebody_has_locked_is_waited_for(locks: Locks, engine: sa.Engine) -> None:
    """Longer than one lock wait time-out of ours (1205)."""
    client = locks()
    client.lock("a").acquire().release()
    with ThreadPoolExecutor() as threads:
        with holding_row(engine):
            before = row_waits(engine, "waits")
            waiting = threads.submit(client.lock("a").acquire)
            eventually(lambda: row_waits(engine, "waits") > before + 1)  # one was ended
            assert not waiting.done()
        assert waiting.result(10).release()


def row_waits(engine: sa.Engine, which: str) -> int:
    """InnoDB's own table of transactions is not looked up anew if it is asked for often."""
    with engine.connect() as connection:
        _, number = connection.exec_driver_sql(
            f"SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_{which}'"
        ).one()
    return int(number)


def test_a_row_that_stays_locked_is_a_store_that_is_busy(locks: Locks, engine: sa.Engine) -> None:
    client = locks(options={"timeout": 0.5})
    client.lock("a").acquire().release()
    with (
        holding_row(engine),
        pytest.raises(lockkit.BackendUnavailable, match=r"busy for more than 0\.5 s"),
    ):
        client.lock("a").acquire()
    client.lock("a").acquire().release()


def test_a_deadlock_is_tried_again(locks: Locks, engine: sa.Engine) -> None:
    """Both wait for a third's INSERT of the same row; it is undone, each has a shared lock on its
    place, and each wants an exclusive one."""
    stores: list[Any] = [locks().store, locks().store]
    values = {"id": row_of(locks(), engine, "a"), "prefix": "", "name": "a", "now": 1, "fence": 1}
    sql = load_dialect("mysql")
    before = deadlocks(engine)

    def insert(connection: Connection) -> int:
        """As a claim does whose name has no row."""
        _, version, *_ = connection.execute(sql.read, values).rows[0]
        return 0 if version else connection.execute(sql.insert, {**values, "state": ""}).changed

    with ThreadPoolExecutor() as threads:
        with engine.connect() as other, other.begin() as transaction:
            other.exec_driver_sql(
                "INSERT INTO lockkit_lock VALUES (%s, '', '', 1, 1, '', 1)", (values["id"],)
            )
            making = [threads.submit(store._try, store._steps, insert) for store in stores]
            eventually(lambda: row_waits(engine, "current_waits") == 2)
            transaction.rollback()
        assert sorted(future.result(20) for future in making) == [0, 1]
    assert deadlocks(engine) > before


def row_of(client: lockkit.LockClient, engine: sa.Engine, name: str) -> str:
    """The key of a name, which then has no row."""
    client.lock(name).acquire().release()
    with engine.begin() as connection:
        row = connection.exec_driver_sql(
            "SELECT id FROM lockkit_lock WHERE name = %s", (name,)
        ).scalar()
        connection.exec_driver_sql("DELETE FROM lockkit_lock WHERE name = %s", (name,))
    return str(row)


def deadlocks(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        return int(
            connection.exec_driver_sql(
                "SELECT variable_value FROM information_schema.global_status "
                "WHERE variable_name = 'INNODB_DEADLOCKS'"
            ).scalar()
            or 0
        )


def test_a_connection_that_was_idle_for_too_long(locks: Locks, engine: sa.Engine) -> None:
    """The server has ended it (wait_timeout), or an administrator has."""
    client = locks()
    mine = "FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
    with engine.connect() as connection:
        eventually(lambda: not connection.exec_driver_sql(f"SELECT id {mine}").all())
        lease = client.lock("a").acquire()
        for (number,) in connection.exec_driver_sql(f"SELECT id {mine}").all():
            connection.exec_driver_sql(f"KILL {number}")
    assert client.lock("a").try_acquire() is None
    lease.extend()
    assert lease.release()


@pytest.mark.parametrize("mode", ["NO_BACKSLASH_ESCAPES", "ANSI_QUOTES,SIMULTANEOUS_ASSIGNMENT"])
def test_names_that_end_a_quotation(locks: Locks, url: str, mode: str) -> None:
    """Whatever the session takes for an escape; as names are made, and as they are used again."""
    client, names = locks(made_with(url, sql_mode=mode)), ["'", '"', "\\", "\\'", "%s", "\u2603'"]
    for _ in range(2):
        leases = [client.lock(name, label=name).acquire(timeout=0) for name in names]
        found = {info.name: info.owner.label for info in client.holders() if info.owner}
        assert found == {name: name for name in names}
        assert all(lease.release() for lease in leases)


@of_pymysql
def test_what_is_taken_and_freed_is_parsed_once(locks: Locks) -> None:
    client: Any = locks()
    for _ in range(3):
        client.lock("a").acquire().release()
    counted = "SHOW SESSION STATUS WHERE Variable_name IN ('Com_prepare_sql', 'Com_execute_sql')"
    rows = client.store._steps.use(lambda c: c.execute(counted, {})).rows
    assert {name: int(value) for name, value in rows} == {
        "Com_execute_sql": 6,
        "Com_prepare_sql": 2,
    }


@of_pymysql
def test_statements_that_were_prepared_in_vain(locks: Locks) -> None:
    """By a proxy that gives the connection another session: sent as they are, from then on."""
    client: Any = locks()
    client.lock("a").acquire().release()

    def lose(connection: Any) -> None:
        for statement in connection._prepared.values():
            connection.execute(f"DEALLOCATE PREPARE {statement.split()[1]}", {})

    client.store._steps.use(lose)
    for _ in range(3):
        with client.lock("a"):
            assert locks().lock("a").try_acquire() is None


@of_pymysql
def test_a_statement_that_the_server_has_to_prepare_again(locks: Locks, engine: sa.Engine) -> None:
    """It says so (1615) if the table changes again and again meanwhile."""
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER changed BEFORE UPDATE ON lockkit_lock FOR EACH ROW "
            "IF @once IS NULL THEN SET @once = 1; "
            "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1615; END IF"
        )
    client: Any = locks()
    for _ in range(3):
        with client.lock("a"):
            assert locks().lock("a").try_acquire() is None
    assert client.store._steps.use(lambda c: c.execute("SELECT @once", {})).rows == ((1,),)


@of_pymysql
def test_statements_that_another_database_has_prepared(
    mariadb_server: MariaDBServer, locks: Locks, url: str
) -> None:
    """A statement keeps the database in which it was prepared, whatever its session uses by then:
    a proxy that shares sessions between databases would have one take the locks of the other."""
    where, made = sa.make_url(url), []

    def client_of(database: str) -> lockkit.LockClient:
        def connect() -> Any:
            made.append(Shared(
                host=where.host, port=where.port or 0, user=where.username, database=database,
                charset="utf8mb4",
            ))  # fmt: skip
            return made[-1]

        client = locks(sa.create_engine("mysql+pymysql://", creator=connect))
        client.lock("a").acquire().release()
        return client

    with table_at(mariadb_server) as theirs:
        client, other = client_of(str(where.database)), client_of(theirs.rpartition("/")[2])
        made[-1].session = made[0]
        with other.lock("a"), client.lock("a").acquire(timeout=0):
            assert [info.name for info in other.holders()] == ["a"]
        other.close()


class Shared(pymysql.connections.Connection):  # type: ignore[misc]  # has no types
    """Asks the session of the server that the proxy gives it."""

    session: Any = None

    def query(self, sql: str, unbuffered: bool = False) -> int:
        if self.session is None:
            return int(super().query(sql, unbuffered))
        theirs = self.session.db
        self.session.select_db(self.db)
        try:
            return int(self.session.query(sql))
        finally:
            self._result = self.session._result
            self.session.select_db(theirs)


@of_pymysql
def test_new_connections_that_break_at_once_leave_nothing_unknown(locks: Locks, url: str) -> None:
    """Nothing has been asked of them, so the step goes on with another one."""
    where, breaks = sa.make_url(url), ["COMMIT AND", "SET SESSION innodb"]

    class Breaking(pymysql.connections.Connection):  # type: ignore[misc]  # has no types
        def query(self, sql: str, unbuffered: bool = False) -> int:
            if breaks and sql.startswith(breaks[-1]):
                breaks.pop()
                self._sock.shutdown(socket.SHUT_RDWR)
            return int(super().query(sql, unbuffered))

    def connect() -> Any:
        return Breaking(
            host=where.host, port=where.port or 0, user=where.username, database=where.database,
            charset="utf8mb4",
        )  # fmt: skip

    client = locks(sa.create_engine("mysql+pymysql://", creator=connect))
    assert list(client.holders()) == []
    assert not breaks
    assert client.lock("a").acquire().release()


@of_pymysql
def test_a_server_that_prepares_no_more_statements(
    mariadb_server: MariaDBServer, locks: Locks
) -> None:
    (most,) = mariadb_server.execute("SELECT @@max_prepared_stmt_count").split()
    mariadb_server.execute("SET GLOBAL max_prepared_stmt_count = 0")
    try:
        with locks().lock("a"):
            assert locks().lock("a").try_acquire() is None
    finally:
        mariadb_server.execute(f"SET GLOBAL max_prepared_stmt_count = {most}")


def test_a_connection_that_cannot_write_every_name_is_refused(locks: Locks, url: str) -> None:
    with pytest.raises(lockkit.ConfigurationError, match=r"latin1.*\?charset=utf8mb4"):
        locks(made_with(url, charset="latin1")).lock("\u2603").acquire()


@pytest.mark.parametrize("way", ["url", "engine"])
def test_a_grant_is_committed_where_a_commit_begins_the_next_transaction(
    way: str, locks: Locks, url: str
) -> None:
    chains = "SET completion_type = CHAIN"
    if way == "url":
        client = locks(f"{url}?init_command={chains}")
    else:
        client = locks(made_with(url, init_command=chains, autocommit=True))
    with client.lock("a"):
        assert locks().lock("a").try_acquire() is None


def test_a_connection_that_commits_nothing_is_refused(locks: Locks, url: str) -> None:
    engine = made_with(url)

    @sa.event.listens_for(engine, "checkout")
    def _turn_off(connection: Any, *_: object) -> None:
        connection.cursor().execute("SET autocommit = 0")

    with pytest.raises(lockkit.ConfigurationError, match="autocommit"):
        locks(engine).lock("a").acquire()


def test_a_missing_table_says_how_to_make_it(locks: Locks, engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE lockkit_lock")
    with pytest.raises(lockkit.ConfigurationError, match=r"store\.create_table\(\).*locks ddl"):
        locks().lock("a").acquire()


def test_a_password_that_is_refused_is_not_shown(locks: Locks, url: str) -> None:
    wrong = url.replace("root@", "root:canary@")
    client = locks(wrong)
    with pytest.raises(lockkit.StoreRefused, match="cannot connect") as caught:
        client.lock("a").acquire()
    assert "canary" not in f"{caught.value} {client!r}"


@pytest.mark.parametrize("query", ["", "?mode=advisory", "?mode=row"])
def test_a_password_may_change(
    mariadb_server: MariaDBServer, locks: Locks, url: str, query: str
) -> None:
    """A function is asked for it at each new connection."""
    current = ["first"]
    asked: list[str] = []

    def password() -> str:
        asked.append(current[0])
        return current[0]

    execute = mariadb_server.execute
    execute(
        f"CREATE USER app IDENTIFIED BY 'first'; GRANT ALL ON {url.rpartition('/')[2]}.* TO app"
    )
    try:
        client = locks(url.replace("root@", "app@") + query, options={"password": password})
        if query.endswith("row"):
            client.store.create_table()
        lease = client.lock("a").acquire()
        execute("ALTER USER app IDENTIFIED BY 'second'")
        current[0] = "second"
        kill = execute("SELECT id FROM information_schema.processlist WHERE user = 'app'").split()
        for number in kill:
            execute(f"KILL {number}")
        assert client.lock("b").acquire().release()
        if query:  # it has ended with its session
            assert lease.release() is False
        else:
            lease.extend()
            assert lease.release()
        assert set(asked) == {"first", "second"}
    finally:
        client.close()
        execute("DROP USER app")


def test_a_wait_whose_end_rolls_its_transaction_back_grants_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MySQL does that at the end of a deadlock, and with this option at that of its patience."""
    impatient = [
        "innodb_lock_wait_timeout = 1" if "lock_wait" in setting else setting
        for setting in pymysql_connection.SETTINGS
    ]
    monkeypatch.setattr(pymysql_connection, "SETTINGS", impatient)
    with (
        MariaDBServer("--innodb-rollback-on-timeout") as server,
        lockkit.connect(f"{server.url}?mode=row", ttl=60.0) as locks,
    ):
        store: Any = locks.store
        store.create_table()
        waiting = claim("a", Mode.ENQUEUE)
        with locks.lock("a"):
            assert isinstance(locks.perform(store.acquire(waiting)), Busy)
            session = store._sessions.of(route_of(waiting))
            assert eventually(lambda: session.connection.poll(0))  # the error is there
        assert isinstance(locks.perform(store.acquire(waiting)), Grant)
        assert locks.lock("a").try_acquire() is None
        assert locks.perform(store.release(waiting)) is Release.RELEASED


@of_pymysql
@pytest.mark.parametrize("mode", ["", "?mode=advisory", "?mode=row"])
def test_mysql_and_mariadb_in_a_url_name_the_same_locks(url: str, locks: Locks, mode: str) -> None:
    one, two = (locks(url.replace("mysql", name, 1) + mode) for name in ("mysql", "mariadb"))
    if "row" in mode:
        one.store.create_table()
    with one.lock("a"):
        assert two.lock("a").try_acquire() is None
    assert two.lock("a").acquire(timeout=0).release()


def test_threads_of_one_client(locks: Locks) -> None:
    """They take turns on its connection."""
    client = locks()
    counter = [0]
    started = threading.Barrier(6)

    def work() -> None:
        started.wait()
        for _ in range(5):
            with client.lock("counter", timeout=30):
                seen = counter[0]
                time.sleep(0.0005)
                counter[0] = seen + 1

    with ThreadPoolExecutor() as threads:
        for future in [threads.submit(work) for _ in range(6)]:
            future.result()
    assert counter == [30]


if mysqlclient.is_installed():

    def test_mysqlclient_is_taken_where_pymysql_is_not(
        mariadb_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(engines, "find_spec", lambda name: name != "pymysql" or None)
        monkeypatch.setitem(sys.modules, "pymysql", None)
        with lockkit.connect(mariadb_url) as client:
            store: Any = client.store
            store.create_table()
            client.lock("a").acquire().release()
            assert store.connector.engine.driver == "mysqldb"
