"""A holder that lost its lease without knowing it cannot write where a later one has written."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy as sa
from pymysql.constants import CLIENT
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    ORMExecuteState,
    Session,
    mapped_column,
    with_loader_criteria,
)

import lockkit
from lockkit import aio, fencing
from lockkit.leases.client import Lease, LockClient
from lockkit.model.errors import ConfigurationError, LeaseLost

TABLE = (
    "CREATE TABLE stock (sku VARCHAR(9) PRIMARY KEY, count INT, fence BIGINT NOT NULL DEFAULT 0)"
)
ROWS = "INSERT INTO stock (sku, count) VALUES ('a', 10), ('b', 10)"
DEDUCT = "UPDATE stock SET count = count - {p}, {{set}} WHERE sku = {p} AND {{unless_stale}}"


class Base(DeclarativeBase):
    pass


class Stock(Base):
    __tablename__ = "stock"
    sku: Mapped[str] = mapped_column(sa.String(9), primary_key=True)
    count: Mapped[int]
    fence: Mapped[int] = mapped_column(sa.BigInteger)


@pytest.fixture
def locks() -> Iterator[LockClient]:
    client = lockkit.connect("memory://")
    yield client
    client.close()


@pytest.fixture
def stale(locks: LockClient) -> Iterator[Lease]:
    """A lease that somebody else has now, and that has not heard of it."""
    lease = locks.lock("stock", ttl=60).acquire()
    assert locks.break_("stock", fence=lease.fencing_token)
    yield lease
    lease.release()


@pytest.fixture
def later(stale: Lease, locks: LockClient) -> Iterator[Lease]:
    with locks.lock("stock", ttl=60).acquire() as lease:
        assert lease.fencing_token > stale.fencing_token
        assert not stale.lost
        yield lease


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Iterator[tuple[Any, str]]:
    """A connection of the DB-API with a table, and the driver's placeholder."""
    if request.param == "sqlite":
        opened, placeholder = sqlite3.connect(":memory:"), "?"
    else:
        opened, placeholder = psycopg.connect(request.getfixturevalue("postgres_url")), "%s"
    with closing(opened) as connection:
        cursor = connection.cursor()
        cursor.execute(TABLE)
        cursor.execute(ROWS)
        connection.commit()
        yield connection, placeholder


def counts(connection: Any) -> dict[str, int]:
    cursor = connection.cursor()
    cursor.execute("SELECT sku, count FROM stock")
    return dict(cursor.fetchall())


class TestAnyDriver:
    @pytest.fixture
    def deduct(self, database: tuple[Any, str]) -> Callable[[Lease, str], None]:
        connection, placeholder = database

        def run(lease: Lease, sku: str) -> None:
            statement = DEDUCT.format(p=placeholder)
            fencing.execute(connection.cursor(), statement, (1, sku), lease=lease)

        return run

    def test_a_stale_holder_writes_where_nobody_has_written_yet(
        self, database: tuple[Any, str], stale: Lease, later: Lease, deduct: Any
    ) -> None:
        deduct(stale, "a")
        deduct(later, "a")
        assert counts(database[0])["a"] == 8

    def test_and_not_after_the_later_one(
        self, database: tuple[Any, str], stale: Lease, later: Lease, deduct: Any
    ) -> None:
        deduct(later, "a")
        deduct(later, "a")
        with pytest.raises(LeaseLost, match="'stock' was refused"):
            deduct(stale, "a")
        assert counts(database[0])["a"] == 8

    def test_and_not_where_the_later_one_has_put_its_token_before_it_reads(
        self, database: tuple[Any, str], stale: Lease, later: Lease, deduct: Any
    ) -> None:
        connection, placeholder = database
        reserve = "UPDATE stock SET {{set}} WHERE sku = {p} AND {{unless_stale}}"
        fencing.execute(connection.cursor(), reserve.format(p=placeholder), ("a",), lease=later)
        with pytest.raises(LeaseLost, match="'stock' was refused"):
            deduct(stale, "a")
        assert counts(connection)["a"] == 10

    def test_a_row_that_is_not_there_is_refused_too(self, later: Lease, deduct: Any) -> None:
        with pytest.raises(LeaseLost, match="there is no such row"):
            deduct(later, "c")

    def test_a_delete_needs_no_set(
        self, database: tuple[Any, str], stale: Lease, later: Lease, deduct: Any
    ) -> None:
        connection, _ = database
        deduct(later, "a")
        delete = "DELETE FROM stock WHERE {unless_stale}"
        with pytest.raises(LeaseLost):
            fencing.execute(connection.cursor(), delete, lease=stale, rows=2)
        connection.rollback()
        fencing.execute(connection.cursor(), f"/* done */\n{delete}", lease=later, rows=2)
        assert counts(connection) == {}

    def test_a_lost_lease_does_not_get_as_far_as_the_database(
        self, database: tuple[Any, str], later: Lease, deduct: Any
    ) -> None:
        later.release()
        with pytest.raises(LeaseLost):
            deduct(later, "a")
        assert counts(database[0])["a"] == 10

    @pytest.mark.parametrize(
        ("statement", "column"),
        [
            ("UPDATE stock SET count = 1 WHERE {unless_stale}", "fence"),
            ("UPDATE stock SET {set}", "fence"),
            ("DELETE FROM stock", "fence"),
            ("UPDATE stock SET {set} WHERE {unless_stale}", "fence = 1; --"),
            ("UPDATE stock SET {set} WHERE {unless_stale}", ""),
            ("/* view=sell */ UPDATE stock SET count = 1 WHERE {unless_stale}", "fence"),
            ("-- sell\nUPDATE stock SET count = 1 WHERE {unless_stale}", "fence"),
            ("/* {set} */ UPDATE stock SET count = 1 WHERE {unless_stale}", "fence"),
            ("WITH x AS (SELECT 1) UPDATE stock SET count = 1 WHERE {unless_stale}", "fence"),
        ],
    )
    def test_a_statement_that_fences_nothing_is_refused(
        self, database: tuple[Any, str], later: Lease, statement: str, column: str
    ) -> None:
        with pytest.raises(ConfigurationError):
            fencing.execute(database[0].cursor(), statement, lease=later, column=column)
        assert counts(database[0]) == {"a": 10, "b": 10}

    def test_rows_that_the_driver_does_not_count_are_no_success(self, later: Lease) -> None:
        """Neither is it a loss: nobody knows."""
        statement = "WITH x AS (SELECT 1) UPDATE stock SET {set} WHERE {unless_stale}"
        with closing(sqlite3.connect(":memory:")) as connection:
            cursor = connection.execute(TABLE)
            with pytest.raises(ConfigurationError, match=r"rowcount -1.*roll back"):
                fencing.execute(cursor, statement, lease=later)
            fencing.execute(cursor, statement, lease=later, rows=0)

    def test_a_driver_that_counts_changed_rows_only_is_refused(
        self, mariadb_url: str, stale: Lease, later: Lease
    ) -> None:
        """Of PyMySQL it is the default: a write that changes nothing is not one that is late."""
        update = "UPDATE stock SET count = 9, {set} WHERE {unless_stale}"
        delete = "DELETE FROM stock WHERE {unless_stale}"
        at = sa.make_url(mariadb_url).translate_connect_args(username="user")
        with (
            pymysql.connect(**at) as changed,
            pymysql.connect(**at, client_flag=CLIENT.FOUND_ROWS) as found,
        ):
            found.cursor().execute(TABLE)
            found.cursor().execute(ROWS)
            found.commit()
            with pytest.raises(ConfigurationError, match=r"client_flag=CLIENT\.FOUND_ROWS"):
                fencing.execute(changed.cursor(), update, lease=later, rows=2)
            for _ in "twice":
                fencing.execute(found.cursor(), update, lease=later, rows=2)
            found.commit()
            with pytest.raises(LeaseLost):
                fencing.execute(found.cursor(), update, lease=stale, rows=2)
            found.rollback()
            fencing.execute(changed.cursor(), update, lease=later, rows=0)
            fencing.execute(changed.cursor(), delete, lease=later, rows=2)


class TestSQLAlchemy:
    @pytest.fixture(params=["sqlite", "postgresql"])
    def session(self, request: pytest.FixtureRequest) -> Iterator[Session]:
        url = "sqlite://"
        if request.param == "postgresql":
            url = request.getfixturevalue("postgres_url").replace("://", "+psycopg://", 1)
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            connection.execute(sa.text(TABLE))
            connection.execute(sa.text(ROWS))
        with Session(engine) as session:
            yield session
        engine.dispose()

    def test_a_stale_holder_is_refused(self, session: Session, stale: Lease, later: Lease) -> None:
        deduct = sa.update(Stock).where(Stock.sku == "a").values(count=Stock.count - 1)
        assert fencing.run(session, deduct, lease=stale, column=Stock.fence) == 1
        assert fencing.run(session, deduct, lease=later, column=Stock.fence) == 1
        with pytest.raises(LeaseLost):
            fencing.run(session, deduct, lease=stale, column=Stock.fence)
        assert session.scalar(sa.select(Stock.count).where(Stock.sku == "a")) == 8

    def test_one_newer_row_among_others_is_noticed(
        self, session: Session, stale: Lease, later: Lease
    ) -> None:
        one = sa.update(Stock).where(Stock.sku == "b").values(count=0)
        fencing.run(session, one, lease=later, column=Stock.fence)
        session.commit()
        for everything in (sa.update(Stock).values(count=5), sa.delete(Stock)):
            with pytest.raises(LeaseLost):
                fencing.run(session, everything, lease=stale, column=Stock.fence)
            session.rollback()
        assert dict(session.execute(sa.select(Stock.sku, Stock.count)).all()) == {"a": 10, "b": 0}  # type: ignore[arg-type]

    def test_a_row_that_is_not_there_is_no_loss(self, session: Session, later: Lease) -> None:
        table = Stock.__table__
        none = sa.update(table).where(table.c.sku == "c").values(count=0)
        assert fencing.run(session.connection(), none, lease=later, column=table.c.fence) == 0

    def test_a_snapshot_does_not_hide_a_later_holder(
        self, mariadb_url: str, stale: Lease, later: Lease
    ) -> None:
        """MySQL's REPEATABLE READ, its default: others refuse such a write by themselves."""
        url = mariadb_url.replace("://", "+pymysql://", 1)
        for dialect in (url, url.replace("mysql", "mariadb", 1)):
            engine = sa.create_engine(dialect)
            Base.metadata.create_all(engine)
            with Session(engine) as session, Session(engine) as other:
                session.add(Stock(sku="a", count=10, fence=0))
                session.commit()
                assert session.scalar(sa.select(Stock.fence)) == 0
                fencing.run(
                    other, sa.update(Stock).values(count=0), lease=later, column=Stock.fence
                )
                other.commit()
                for write in (sa.update(Stock).values(count=5), sa.delete(Stock)):
                    with pytest.raises(LeaseLost):
                        fencing.run(session, write, lease=stale, column=Stock.fence)
            Base.metadata.drop_all(engine)
            engine.dispose()


class TestSessionsThatRoute:
    """The check looks where the write was made, not where the session reads."""

    @pytest.fixture
    def engines(self) -> Iterator[tuple[sa.Engine, sa.Engine]]:
        engines = sa.create_engine("sqlite://"), sa.create_engine("sqlite://")
        for engine in engines:
            Base.metadata.create_all(engine)
            with Session(engine) as session:
                session.add_all(Stock(sku=sku, count=10, fence=0) for sku in "ab")
                session.commit()
        yield engines
        for engine in engines:
            engine.dispose()

    @pytest.mark.parametrize("kind", ["takes no bind", "ignores it", "heeds it"])
    def test_a_stale_holder_is_refused(
        self, kind: str, engines: tuple[sa.Engine, sa.Engine], stale: Lease, later: Lease
    ) -> None:
        leader, follower = engines

        class Routing(Session):
            def get_bind(self, mapper: Any = None, *, clause: Any = None, **options: Any) -> Any:
                if kind == "takes no bind" and options:
                    raise TypeError(f"get_bind() got an unexpected argument {[*options]}")
                if kind == "heeds it" and "bind" in options:
                    return options["bind"]
                return leader if isinstance(clause, sa.Update | sa.Delete) else follower

        with Routing() as session:
            one = sa.update(Stock).where(Stock.sku == "b").values(count=0)
            assert fencing.run(session, one, lease=later, column=Stock.fence) == 1
            session.commit()
            everything = sa.update(Stock).values(count=5)
            with pytest.raises(LeaseLost):
                fencing.run(session, everything, lease=stale, column=Stock.fence)
        with Session(leader) as session:
            assert session.scalars(sa.select(Stock.count).order_by(Stock.sku)).all() == [10, 0]

    def test_what_the_session_leaves_out_of_every_statement_is_no_loss(
        self, engines: tuple[sa.Engine, sa.Engine], stale: Lease, later: Lease
    ) -> None:
        """A later holder's row is no matter where an event's criteria keep the write from it."""

        def only_a(state: ORMExecuteState) -> None:
            state.statement = state.statement.options(with_loader_criteria(Stock, Stock.sku == "a"))

        everything = sa.update(Stock).values(count=5)
        with Session(engines[0]) as session:
            other = sa.update(Stock).where(Stock.sku == "b").values(count=0)
            fencing.run(session, other, lease=later, column=Stock.fence)
            sa.event.listen(session, "do_orm_execute", only_a)
            assert fencing.run(session, everything, lease=stale, column=Stock.fence) == 1


class TestLeasesOnSeveralNames:
    def test_say_which_token_to_take(self, locks: LockClient) -> None:
        with locks.multi("b", "a") as leases:
            with pytest.raises(ConfigurationError, match=r"leases\['a'\]"):
                fencing.token_of(leases)  # type: ignore[arg-type]
            assert fencing.token_of(leases["a"]) == leases["a"].fencing_token

    async def test_of_asyncio_too(self) -> None:
        async with aio.connect("memory://") as client, client.multi("b", "a") as leases:
            with pytest.raises(ConfigurationError, match=r"leases\['a'\]"):
                fencing.token_of(leases)  # type: ignore[arg-type]


class TestSharedLeases:
    """Of several who hold a name, no one is the latest: they cannot fence."""

    def test_are_refused_by_name(self, locks: LockClient) -> None:
        permit = locks.semaphore("stock", 2).acquire()
        with permit, pytest.raises(ConfigurationError, match="'stock' is shared"):
            fencing.token_of(permit)

    def test_write_nothing(self, locks: LockClient) -> None:
        with closing(sqlite3.connect(":memory:")) as database:
            cursor = database.execute(TABLE)
            cursor.execute(ROWS)
            permit = locks.semaphore("stock", 2).acquire()
            with permit, pytest.raises(ConfigurationError, match="shared"):
                fencing.execute(cursor, DEDUCT.format(p="?"), (1, "a"), lease=permit)
            cursor.execute("SELECT count FROM stock WHERE sku = 'a'")
            assert cursor.fetchone() == (10,)


def test_a_connection_is_no_cursor(locks: LockClient) -> None:
    """It would write, and then not say how many rows."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute(TABLE)
        connection.execute(ROWS)
        with (
            locks.lock("stock").acquire() as lease,
            pytest.raises(ConfigurationError, match="cursor"),
        ):
            fencing.execute(connection, DEDUCT.format(p="?"), (1, "a"), lease=lease)  # type: ignore[arg-type]
        assert connection.execute("SELECT count FROM stock").fetchall() == [(10,), (10,)]
