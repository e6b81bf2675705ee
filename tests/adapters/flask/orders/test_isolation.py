"""Duplicates at once, where transactions see snapshots: PostgreSQL and MariaDB."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import sqlalchemy as sa
from flask import Flask, current_app, request
from flask_project import Order, create_app, db, put

from lockkit.orders.rows import TABLE as TABLE_NAME
from lockkit_flask.orders.schema import order_table
from lockkit_flask.state import app_locks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flask.typing import ResponseReturnValue
    from werkzeug.test import TestResponse

LEVELS = ["READ COMMITTED", "REPEATABLE READ"]
A_1 = {"X-User": "alice", "X-Order-ID": "A-1"}
DUPLICATES = 4


@pytest.fixture(
    params=[
        *product(("postgresql+psycopg", "mysql+pymysql"), LEVELS),
        ("postgresql+psycopg2", "REPEATABLE READ"),
    ],
    ids="-".join,
)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """A driver and an isolation level. With one of them, psycopg's statements are prepared."""
    driver, level = request.param
    if level == LEVELS[1]:
        monkeypatch.setattr("lockkit.orders.psycopg.PREPARED_AFTER", 1)
    return driver, level


@pytest.fixture
def url(place: tuple[str, str], request: pytest.FixtureRequest) -> str:
    driver = place[0]
    server = "mariadb_url" if driver.startswith("mysql") else "postgres_url"
    served: str = request.getfixturevalue(server)
    return f"{driver}://{served.partition('://')[2]}"


@pytest.fixture
def level(place: tuple[str, str]) -> str:
    return place[1]


def test_the_table_has_transactions_whatever_the_server_s_default(mariadb_url: str) -> None:
    """A record is rolled back with what its order has saved."""
    url = f"mysql+pymysql://{mariadb_url.partition('://')[2]}"
    of_the_server = {"init_command": "SET default_storage_engine = MyISAM"}
    engine = sa.create_engine(url, connect_args=of_the_server, poolclass=sa.NullPool)
    order_table(metadata := sa.MetaData())
    metadata.create_all(engine)
    with engine.connect() as connection:
        query = f"SHOW TABLE STATUS LIKE '{TABLE_NAME}'"
        (found,) = connection.execute(sa.text(query)).mappings()
    assert found["Engine"] == "InnoDB"


class Machine(NamedTuple):
    """One process's app; its view waits in ``gate`` when it has ordered."""

    app: Flask
    inside: threading.Semaphore
    gate: threading.Event


@pytest.fixture
def machine(
    url: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Machine]]:
    """``machine(WAIT=…)``: each has locks of its own, so that only the unique key is common."""
    monkeypatch.delenv("LOCKKIT_URL", raising=False)
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(_machine(url, level, settings))


ORDERS = {"ORDER_ID": ["header:X-Order-ID"], "PATHS": ["^/"], "WAIT": 60}


CONNECT_ARGS = {
    "postgresql+psycopg": {"prepare_threshold": None},
    "mysql+pymysql": {"init_command": "SET SESSION innodb_lock_wait_timeout = 600"},
}
"""MariaDB's own 50 seconds would end a wait before the first request leaves its gate."""


@contextmanager
def _machine(url: str, level: str, settings: dict[str, Any]) -> Iterator[Machine]:
    connect_args = CONNECT_ARGS.get(url.partition(":")[0], {})
    app = create_app(
        SQLALCHEMY_DATABASE_URI=url,
        SQLALCHEMY_ENGINE_OPTIONS={"isolation_level": level, "connect_args": connect_args},
        LOCKKIT_URL="memory://",
        LOCKKIT_ORDERS={**ORDERS, **settings},
    )
    made = Machine(app, threading.Semaphore(0), threading.Event())

    @app.before_request
    def read() -> None:
        """As Flask-Login: a snapshot from before the lock."""
        db.session.execute(sa.select(sa.func.count()).select_from(Order)).scalar_one()

    def buy() -> tuple[str, int]:
        order = put("bought")
        db.session.commit()
        made.inside.release()
        assert made.gate.wait(60)
        return f"order {order.id}", int(request.headers.get("X-Status", "201"))

    app.add_url_rule("/buy", view_func=buy, methods=["POST"])
    with app.app_context():
        db.create_all()
    yield made
    with app.app_context():
        for engine in db.engines.values():
            engine.dispose()
    app_locks(app).close()


def post(machine: Machine, **headers: str) -> TestResponse:
    return machine.app.test_client().post("/buy", headers={**A_1, **headers})


def count(machine: Machine, table: str = "order") -> int:
    with machine.app.app_context(), db.engine.connect() as connection:
        query = sa.select(sa.func.count()).select_from(db.metadata.tables[table])
        return int(connection.execute(query).scalar_one())


def waiting(machine: Machine) -> int:
    """Transactions of others that wait for a row of ours."""
    query = {
        "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        " AND datname = current_database()",
        "mysql": "SELECT count(*) FROM information_schema.innodb_trx"
        " JOIN information_schema.processlist ON id = trx_mysql_thread_id"
        " WHERE trx_state = 'LOCK WAIT' AND db = database()",
    }
    with machine.app.app_context(), db.engine.connect() as connection:
        return int(connection.execute(sa.text(query[db.engine.dialect.name])).scalar_one())


class Posts:
    """Requests that run at once, and their answers."""

    def __init__(self) -> None:
        self.answers: list[TestResponse] = []
        self._threads: list[threading.Thread] = []

    def start(self, machine: Machine, **headers: str) -> None:
        def run() -> None:
            self.answers.append(post(machine, **headers))

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def join(self) -> list[TestResponse]:
        for thread in self._threads:
            thread.join()
        return self.answers


@pytest.mark.parametrize("lock", ["always", "never"])
def test_duplicates_at_once_are_one_order(machine: Callable[..., Machine], lock: str) -> None:
    """Under one lock, or with the unique key alone: who waited sees the winner's record, whatever
    was read before."""
    shop, posts = machine(LOCK=lock), Posts()
    for _ in range(DUPLICATES):
        posts.start(shop)
    assert shop.inside.acquire(timeout=60)
    shop.gate.set()
    _is_one_order(posts.join(), shop)


def test_a_second_runner_waits_for_the_first_ones_record(machine: Callable[[], Machine]) -> None:
    """What a lost lease looks like: two run, and the unique key lets one of them in."""
    shops, posts = [machine(), machine()], Posts()
    posts.start(shops[0])
    assert shops[0].inside.acquire(timeout=60)
    posts.start(shops[1])
    _until(lambda: waiting(shops[0]) >= 1)
    assert not shops[1].inside.acquire(blocking=False)
    shops[0].gate.set()
    shops[1].gate.set()
    _is_one_order(posts.join(), shops[0])


def test_a_second_runner_waits_for_the_key_no_longer_than_wait(
    machine: Callable[..., Machine],
) -> None:
    """It has its answer while the first one is paused, and leaves its connection as it was."""
    first, second, posts = machine(), machine(WAIT=1), Posts()
    second.app.add_url_rule("/patience", view_func=_patience, methods=["POST"])
    before = second.app.test_client().post("/patience").text
    posts.start(first)
    assert first.inside.acquire(timeout=60)
    second.gate.set()  # had it waited for the first one's end, it would sell
    late = post(second)
    assert (late.status_code, late.json["code"]) == (409, "order-running")
    assert int(late.headers["Retry-After"]) >= 1
    first.gate.set()
    assert [answer.status_code for answer in posts.join()] == [201]
    assert (count(first), count(first, TABLE_NAME)) == (1, 1)
    order = second.app.test_client().post("/patience", headers={**A_1, "X-Order-ID": "A-2"})
    assert before == order.text == second.app.test_client().post("/patience").text


def _patience() -> tuple[str, int]:
    """How long a statement waits for a lock, as the connection of the session has it set."""
    query = {
        "postgresql": "SELECT current_setting('lock_timeout')",
        "mysql": "SELECT @@SESSION.innodb_lock_wait_timeout",
    }
    return str(db.session.execute(sa.text(query[db.engine.dialect.name])).scalar_one()), 200


def test_a_second_runner_goes_on_when_the_first_has_failed(
    machine: Callable[[], Machine],
) -> None:
    shops, posts = [machine(), machine()], Posts()
    posts.start(shops[0], **{"X-Status": "503"})
    assert shops[0].inside.acquire(timeout=60)
    posts.start(shops[1])
    _until(lambda: waiting(shops[0]) >= 1)
    shops[0].gate.set()
    shops[1].gate.set()
    assert sorted(answer.status_code for answer in posts.join()) == [201, 503]
    assert (count(shops[0]), count(shops[0], TABLE_NAME)) == (1, 1)


def test_one_of_those_that_waited_for_a_failure_takes_effect(
    machine: Callable[..., Machine],
) -> None:
    """MariaDB lets one of them in, and calls the rest deadlocked."""
    shop, posts, others = machine(LOCK="never"), Posts(), Posts()
    posts.start(shop, **{"X-Status": "503"})
    assert shop.inside.acquire(timeout=60)
    for _ in range(3):
        others.start(shop)
    _until(lambda: waiting(shop) >= 3)
    shop.gate.set()
    assert [answer.status_code for answer in posts.join()] == [503]
    _is_one_order(others.join(), shop)


def by_statements(first: int, second: int, meet: Callable[[], None]) -> ResponseReturnValue:
    db.session.execute(sa.update(Order).filter_by(id=first).values(name="crossed"))
    meet()
    db.session.execute(sa.update(Order).filter_by(id=second).values(name="crossed"))
    db.session.commit()
    return "crossed", 201


def by_objects(first: int, second: int, meet: Callable[[], None]) -> ResponseReturnValue:
    """SQLAlchemy rolls back to its savepoint after a flush that has failed."""
    for row, then in ((first, meet), (second, db.session.commit)):
        db.session.scalars(sa.select(Order).filter_by(id=row)).one().name = "crossed"
        db.session.flush()
        then()
    return "crossed", 201


def by_two_tries(first: int, second: int, meet: Callable[[], None]) -> ResponseReturnValue:
    try:
        return by_objects(first, second, meet)
    except sa.exc.DBAPIError:
        db.session.rollback()
        return by_objects(first, second, meet)


def by_a_commit_of_the_rest(
    first: int, second: int, meet: Callable[[], None]
) -> ResponseReturnValue:
    with suppress(sa.exc.DBAPIError):
        return by_statements(first, second, meet)
    db.session.commit()
    return "crossed in part", 201


@pytest.mark.parametrize(
    "cross", [by_statements, by_objects, by_two_tries, by_a_commit_of_the_rest]
)
def test_of_a_deadlock_one_is_told_to_repeat_and_is_done_then(
    machine: Callable[[], Machine], cross: Any, url: str
) -> None:
    """MySQL ends the transaction with its savepoints."""
    is_told = url.startswith("mysql") or cross in (by_statements, by_objects)
    done, told, again = meet_crosswise(machine(), cross)
    assert done.status_code == 201
    if is_told:
        assert (told.status_code, told.json["code"]) == (503, "order-not-saved")
        assert int(told.headers["Retry-After"]) >= 1
        assert sorted(map(_replayed, again)) == [False, True]


@pytest.mark.parametrize("rolls_back", [True, False])
def test_a_view_that_refuses_after_a_deadlock_has_saved_nothing(
    machine: Callable[[], Machine], rolls_back: bool
) -> None:
    def refuse(*ways: Any) -> ResponseReturnValue:
        try:
            return by_statements(*ways)
        except sa.exc.DBAPIError:
            if rolls_back:
                db.session.rollback()
            return "not now", 409

    done, told, again = meet_crosswise(machine(), refuse)
    assert (done.status_code, told.status_code, told.text) == (201, 409, "not now")
    assert sorted(map(_replayed, again)) == [False, True]


def meet_crosswise(shop: Machine, cross: Any) -> tuple[TestResponse, TestResponse, list[Any]]:
    """Two orders change two rows, each the other way round. Returns the answer to the one that was
    done, to the other one, and to their repeats."""
    posts, both, met = Posts(), threading.Barrier(2), set[str]()

    def buy() -> ResponseReturnValue:
        def meet() -> None:
            if (order_id := request.headers["X-Order-ID"]) not in met:
                met.add(order_id)
                both.wait(60)

        rows = map(int, request.headers["X-Rows"].split())
        answer: ResponseReturnValue = current_app.config["CROSS"](*rows, meet)
        return answer

    with shop.app.app_context():
        rows = [put("row"), put("row")]
        db.session.commit()
        one, two = (row.id for row in rows)
    shop.app.view_functions["buy"], shop.app.config["CROSS"] = buy, cross
    ways = {"A-1": f"{one} {two}", "A-2": f"{two} {one}"}
    for order_id, way in ways.items():
        posts.start(shop, **{"X-Order-ID": order_id, "X-Rows": way})
    done, told = sorted(posts.join(), key=lambda answer: answer.status_code)
    again = [post(shop, **{"X-Order-ID": key, "X-Rows": way}) for key, way in ways.items()]
    return done, told, again


def _is_one_order(answers: list[TestResponse], shop: Machine) -> None:
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.data for answer in answers}) == 1
    assert sum("Idempotent-Replayed" in answer.headers for answer in answers) == len(answers) - 1
    assert (count(shop), count(shop, TABLE_NAME)) == (1, 1)


def _until(true: Callable[[], bool]) -> None:
    """A database says in no other way that somebody waits.

    InnoDB answers from a cache until nobody has asked for 0.1 seconds.
    """
    pause = threading.Event()
    for _ in range(400):
        if true():
            return
        pause.wait(0.15)
    raise AssertionError("it did not come to that")


@pytest.mark.parametrize("days", [-3, 3])
def test_a_host_whose_clock_is_wrong_keeps_and_prunes_by_the_databases(
    machine: Callable[..., Machine], days: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = machine()
    shop.gate.set()
    other = {"X-Order-ID": "A-2"}
    right = time.time
    assert not _replayed(post(shop))
    monkeypatch.setattr(time, "time", lambda: right() + days * 86400)
    assert [_replayed(post(shop)), _replayed(post(shop, **other))] == [True, False]
    assert _pruned(shop) == []
    monkeypatch.setattr(time, "time", right)
    assert [_replayed(post(shop)), _replayed(post(shop, **other))] == [True, True]
    assert _pruned(shop) == []
    assert (count(shop), count(shop, TABLE_NAME)) == (2, 2)


def _replayed(answer: TestResponse) -> bool:
    assert answer.status_code == 201
    return "Idempotent-Replayed" in answer.headers


def _pruned(shop: Machine) -> list[int]:
    with shop.app.app_context():
        orders = app_locks().orders
        assert orders is not None
        return [count for table in orders.tables() for count in table.prune(1000)]


def test_the_longest_answer_that_is_kept(machine: Callable[[], Machine]) -> None:
    """In MariaDB a plain BLOB would end at 64 KiB."""
    shop = machine()
    shop.app.add_url_rule("/large", view_func=lambda: b"\0\xff" * 131072, methods=["POST"])
    answers: list[Any] = [shop.app.test_client().post("/large", headers=A_1) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[1].data == answers[0].data
    assert answers[1].headers["Idempotent-Replayed"] == "true"
