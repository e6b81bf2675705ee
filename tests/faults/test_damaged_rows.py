"""Anything may stand where a row of ours was, in a database: it is told, and never run over."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from damaging import (
    BROKEN,
    EXAMPLES,
    HELD,
    MUTEX,
    NAMES,
    OTHERS,
    check,
    check_shown,
    pieces,
    use,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from lock_tables import engine_for
from steps import Steps

from lockkit.engine.state import State
from lockkit.model.settings import settings_from_url
from lockkit.model.types import LockState, Release
from lockkit.stores.registry import load_store
from lockkit.stores.sql import create_table, rows
from lockkit.stores.sql.codec import WHOLE, row_id
from lockkit.stores.sql.words import row_of_words

COLUMNS = "id, prefix, name, version, fence, state, updated"
NUMBERS = ("version", "fence", "updated")
SERVED = settings(EXAMPLES, max_examples=40)
PREFIX = "d"
AHEAD = WHOLE - 1000
"""A fence that the clock is far behind."""

WORDS = "words"
ROWS = {name: row_id(PREFIX, name) for name in NAMES} | {WORDS: row_of_words(PREFIX, BROKEN)}
Row = tuple[Any, ...]


class Store:
    """A database in use. Subclasses say how a statement is run."""

    names = NAMES

    def __init__(self, backend: Steps) -> None:
        self.backend = backend
        self.fences = use(backend)
        self.sound = self.data("sound")

    def data(self, copy: str = "damaged") -> str:
        """A table beside it, whose values keep their types."""
        self.run(f"DROP TABLE IF EXISTS {copy}")
        self.run(f"CREATE TEMPORARY TABLE {copy} AS SELECT {COLUMNS} FROM lockkit_lock")
        return copy

    def put(self, data: str) -> None:
        self.run("DELETE FROM lockkit_lock")
        self.run(f"INSERT INTO lockkit_lock ({COLUMNS}) SELECT {COLUMNS} FROM {data}")

    def content(self) -> list[Row]:
        return self.run(f"SELECT {COLUMNS} FROM lockkit_lock ORDER BY id")

    held = content

    def change(self, name: str, column: str, value: object, put: str = "?") -> None:
        self.run(f"UPDATE lockkit_lock SET {column} = {put} WHERE id = ?", (value, ROWS[name]))

    def state(self, name: str) -> str:
        ((found,),) = self.run("SELECT state FROM sound WHERE id = ?", (ROWS[name],))
        return found.decode() if isinstance(found, bytes) else found

    def run(self, statement: str, values: Row = ()) -> list[Row]:
        raise NotImplementedError


class SQLite(Store):
    def __init__(self, path: Path) -> None:
        backend = Steps(load_store(settings_from_url(f"sqlite:///{path}", key_prefix=PREFIX)))
        self.admin = sqlite3.connect(path, isolation_level=None, timeout=5)
        self.admin.text_factory = bytes
        super().__init__(backend)

    def run(self, statement: str, values: Row = ()) -> list[Row]:
        return self.admin.execute(statement, values).fetchall()

    def close(self) -> None:
        self.backend.close()
        self.admin.close()


class Served(Store):
    """Of PostgreSQL or MariaDB."""

    def __init__(self, url: str) -> None:
        self.engine = sa.create_engine(engine_for(url).url, isolation_level="AUTOCOMMIT")
        create_table(self.engine)
        settings = settings_from_url("sqlalchemy://", key_prefix=PREFIX)
        self.admin = self.engine.connect()
        store = load_store(settings._replace(options={"engine": self.engine}))
        super().__init__(Steps(store))

    def run(self, statement: str, values: Row = ()) -> list[Row]:
        result = self.admin.exec_driver_sql(statement.replace("?", "%s"), values)
        return [tuple(row) for row in result] if result.returns_rows else []

    def close(self) -> None:
        self.backend.close()
        self.admin.close()
        self.engine.dispose()


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SQLite]:
    store = SQLite(tmp_path_factory.mktemp("damaged") / "locks.sqlite3")
    yield store
    store.close()


@pytest.fixture
def postgresql(postgres_url: str) -> Iterator[Served]:
    store = Served(postgres_url)
    yield store
    store.close()


@pytest.fixture
def mariadb(mariadb_url: str) -> Iterator[Served]:
    store = Served(mariadb_url)
    yield store
    store.close()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


@st.composite
def documents(draw: st.DrawFn, text: str) -> str:
    """JSON as ours, with another value somewhere in it."""
    document = json.loads(text)
    place: Any = document
    while True:
        keys = list(place) if isinstance(place, dict) else range(len(place))
        key = draw(st.sampled_from(keys))
        if not (isinstance(place[key], dict | list) and place[key]) or draw(st.integers(0, 9)) == 0:
            break
        place = place[key]
    place[key] = draw(json_values | st.sampled_from([-1, 2**53, 2**63, 10**400, 1.5, True, "1"]))
    return json.dumps(document)


def texts(text: str) -> st.SearchStrategy[str]:
    """That PostgreSQL takes as well: proper, and without NUL."""
    any_text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
    cut = pieces(text.encode()).map(lambda b: b.decode("utf-8", "replace").replace("\0", "?"))
    return any_text | cut | documents(text)


@st.composite
def sqlite_damages(draw: st.DrawFn, store: Store) -> Callable[[], None]:
    """Any column of SQLite takes a value of any type."""
    name, column = (
        draw(st.sampled_from([*ROWS])),
        draw(st.sampled_from(["state", "name", *NUMBERS])),
    )
    anything: st.SearchStrategy[Any] = (
        st.binary(max_size=20)
        | st.integers(-(2**63), 2**63 - 1)
        | st.floats(allow_nan=False)
        | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    )
    if column == "state":
        anything = anything | texts(store.state(name))
    value = draw(anything)
    is_text = isinstance(value, bytes) and draw(st.booleans())  # that cannot be decoded
    put = "CAST(? AS TEXT)" if is_text else "?"
    return lambda: store.change(name, column, value, put)


@st.composite
def served_damages(draw: st.DrawFn, store: Store) -> Callable[[], None]:
    name, column = draw(st.sampled_from([*ROWS])), draw(st.sampled_from(["state", *NUMBERS]))
    value: Any = (
        draw(texts(store.state(name)))
        if column == "state"
        else draw(st.integers(-(2**63), 2**63 - 1))
    )
    return lambda: store.change(name, column, value)


@EXAMPLES
@given(data=st.data())
def test_whatever_stands_in_sqlite(sqlite: SQLite, data: st.DataObject) -> None:
    sqlite.put(sqlite.sound)
    data.draw(sqlite_damages(sqlite))()
    check(sqlite)


@SERVED
@given(data=st.data())
def test_whatever_stands_in_postgresql(postgresql: Served, data: st.DataObject) -> None:
    postgresql.put(postgresql.sound)
    data.draw(served_damages(postgresql))()
    check(postgresql)


@settings(SERVED, max_examples=25)  # its driver takes longest
@given(data=st.data())
def test_whatever_stands_in_mariadb(mariadb: Served, data: st.DataObject) -> None:
    mariadb.put(mariadb.sound)
    data.draw(served_damages(mariadb))()
    check(mariadb)


@pytest.mark.parametrize("says", ["", "D", "{words}", b"d", 7], ids=repr)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_prefix_that_is_another(request: pytest.FixtureRequest, kind: str, says: Any) -> None:
    """Its row is locked by its id, and shown."""
    if kind == "postgresql" and not isinstance(says, str):
        return  # it keeps texts only
    store: Store = request.getfixturevalue(kind)
    store.put(store.sound)
    store.change(MUTEX, "prefix", says)
    (info,) = [info for info in store.backend.holders() if info.name == MUTEX]
    assert info.state is LockState.DAMAGED
    assert f"the key prefix {says!r}" in info.damage or isinstance(says, int)  # a column of text
    (same,) = store.backend.holders(MUTEX)
    assert same.state is LockState.HELD
    assert all(isinstance(prefix, str) for prefix in store.backend.prefixes())


@pytest.mark.parametrize("value", [None, [], {}, "", -1, 1e400, True, [7]], ids=repr)
def test_last_words_with_any_value(sqlite: SQLite, value: object) -> None:
    """Each is shown, or left out: words only inform."""
    sqlite.put(sqlite.sound)
    text = sqlite.state(WORDS)
    (told,) = json.loads(text).values()
    for place in range(len(told)):
        changed = [*told[:place], value, *told[place + 1 :]]
        sqlite.change(WORDS, "state", json.dumps({"words": changed}, separators=(",", ":")))
        check_shown(sqlite, [], None)


def test_a_version_that_does_not_grow_grants_to_one(sqlite: SQLite) -> None:
    """At the end of SQLite's integers a version plus one is a float, and stays what it is."""
    sqlite.put(sqlite.sound)
    sqlite.change(MUTEX, "version", 2**63 - 1)
    check(sqlite)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
def test_a_repair_of_what_was_repaired_meanwhile_changes_nothing(
    request: pytest.FixtureRequest, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may have locked it since. The fence that could be read goes on growing."""
    store: Store = request.getfixturevalue(kind)
    store.put(store.sound)
    store.change(MUTEX, "version", -5)
    store.change(MUTEX, "fence", AHEAD)
    state_of, granted = rows.state_of, []

    def meanwhile(row: Row) -> State:
        monkeypatch.undo()
        assert store.backend.repair(MUTEX)
        granted.append(store.backend.acquire(OTHERS[0]))
        return state_of(row)

    monkeypatch.setattr(rows, "state_of", meanwhile)
    assert not store.backend.repair(MUTEX)
    (info,) = store.backend.holders(MUTEX)
    assert info.fence == granted[0].fence > AHEAD


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
def test_blanks_are_not_free(request: pytest.FixtureRequest, kind: str) -> None:
    """MariaDB compares them as nothing: its collations pad."""
    store: Store = request.getfixturevalue(kind)
    store.put(store.sound)
    store.change(MUTEX, "state", "  ")
    (info,) = [info for info in store.backend.holders() if info.name == MUTEX]
    assert info.state is LockState.DAMAGED
    check(store)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
@pytest.mark.parametrize(
    ("token", "channel"),
    [("\ud800", "c"), ("\0", "c"), ("t" * 4000, "c"), ("t", "\0"), ("t", "\u00e9" * 40)],
    ids=["surrogate", "NUL", "long", "channel of NUL", "channel of many bytes"],
)
def test_what_no_message_can_say_is_damaged(
    request: pytest.FixtureRequest, kind: str, token: str, channel: str
) -> None:
    """A release would hand the name over, and then fail to say so."""
    store: Store = request.getfixturevalue(kind)
    store.put(store.sound)
    state = json.loads(store.state(MUTEX))
    state["queue"][0][0], state["channels"] = token, {token: channel}
    store.change(MUTEX, "state", json.dumps(state))
    (info,) = [info for info in store.backend.holders() if info.name == MUTEX]
    assert info.state is LockState.DAMAGED
    check(store)


def test_channels_where_no_message_is_sent(mariadb: Served) -> None:
    """Whoever writes the table can name some; its waiters poll."""
    state = json.loads(mariadb.state(MUTEX))
    state["channels"] = {state["queue"][0][0]: "c"}
    mariadb.change(MUTEX, "state", json.dumps(state))
    assert mariadb.backend.release(HELD[0]) is Release.RELEASED
