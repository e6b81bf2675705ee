"""The SQL backend where it differs from other stores: files, forks, rows of free names."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sqlalchemy
from garbage import collected
from steps import Steps

import lockkit
from lockkit.engine.grant import Holder, State, Waiter
from lockkit.engine.times import alive_for
from lockkit.model.clock import now
from lockkit.model.settings import settings_from_url
from lockkit.model.types import Busy, Grant, Mode, Request
from lockkit.stores.registry import load_store
from lockkit.stores.sql import codec, connector, create_table, engines, files, guard, listing
from lockkit.stores.sql import rows as table_rows
from lockkit.stores.sql import store as sql_store
from lockkit.stores.sql.beside import path_beside
from lockkit.stores.sql.connector import Connection
from lockkit.stores.sql.sqlite import SQLiteStore
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import PostgresServer

Connect = Callable[..., lockkit.LockClient]
OLD = 2 * 24 * 3600 * 1_000_000
ENGINE = sqlalchemy.create_engine("sqlite://")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.sqlite3"


@pytest.fixture
def connect(path: Path) -> Iterator[Connect]:
    clients: list[lockkit.LockClient] = []

    def connected(where: Path | str = path, **options: object) -> lockkit.LockClient:
        url = where if "://" in str(where) else f"sqlite:///{where}"
        clients.append(lockkit.connect(str(url), **options))
        return clients[-1]

    yield connected
    for client in clients:
        client.close()


def rows(path: Path, statement: str, *values: object) -> list[tuple[object, ...]]:
    """What another program sees, or does, in the file."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=5)
    try:
        return connection.execute(statement, values).fetchall()
    finally:
        connection.close()


def forked(child: Callable[[], bool]) -> bool:
    """What a forked child found."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if child() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# Statements


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("postgresql://h/shop", r"'lockkit\[postgresql\]', and 'psycopg\[binary\]' if libpq is"),
        ("mariadb://h/shop", r"'lockkit\[mysql\]'$"),
    ],
)
def test_a_missing_driver_is_told_with_all_that_is_to_be_installed(
    url: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda _: None)
    with pytest.raises(lockkit.DriverMissing, match=rf"needs a driver: pip install {remedy}"):
        lockkit.connect(url)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    remedy = remedy.removesuffix("$")
    with pytest.raises(lockkit.DriverMissing, match=rf"needs SQLAlchemy: pip install {remedy}"):
        lockkit.connect(url)


def test_a_pair_is_two_statements(connect: Connect) -> None:
    """And nothing is read where nobody waits."""
    client = connect()
    lock = client.lock("a")
    lock.acquire().release()
    asked: list[str] = []
    slot = client.store._steps  # type: ignore[attr-defined]
    slot.use(lambda connection: connection._connection.set_trace_callback(asked.append))
    for _ in range(5):
        lock.acquire().release()
    assert [text.split()[0] for text in asked] == ["UPDATE"] * 10


def test_fences_grow_however_fast_a_name_is_taken(connect: Connect, path: Path) -> None:
    """Also where the clock has gone back: then the row's own number goes on."""
    lock = connect().lock("a")
    fences = []
    for _ in range(50):
        with lock.acquire() as lease:
            fences.append(lease.fencing_token or 0)
    ahead = fences[-1] + 3_600_000_000
    rows(path, "UPDATE lockkit_lock SET fence = ?", ahead)
    with lock.acquire() as lease:
        fences.append(lease.fencing_token or 0)
    assert fences == sorted(set(fences))
    assert fences[-1] == ahead + 1


# The file


def test_the_file_is_readable_by_its_owner_only(connect: Connect, path: Path) -> None:
    with connect().lock("a"):
        modes = {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {0o600}


def test_who_only_looks_makes_no_file(connect: Connect, path: Path) -> None:
    """It would be his, with no access for those who are to lock there."""
    client = connect()
    assert client.inspect("stock:42") is None
    assert list(client.holders()) == []
    assert not path.exists()
    client.lock("stock:42").acquire().release()
    assert path.exists()


def test_the_embedded_default_makes_its_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, connect: Connect
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with pytest.warns(RuntimeWarning, match="LOCKKIT_URL is not set"):
        default = lockkit.connect()
    with connect(default.store.connector._path).lock("a"):  # type: ignore[attr-defined]
        directory = tmp_path / "state" / "lockkit"
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert (directory / "locks.sqlite3").exists()


def test_a_relative_path_stays_where_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, connect: Connect
) -> None:
    monkeypatch.chdir(tmp_path)
    client = connect("sqlite:///here.sqlite3")
    monkeypatch.chdir("/")
    with client.lock("a"):
        assert (tmp_path / "here.sqlite3").exists()


def test_a_directory_that_is_not_there(connect: Connect, tmp_path: Path) -> None:
    with pytest.raises(lockkit.BackendUnavailable, match="No such file or directory"):
        connect(tmp_path / "nowhere" / "locks.sqlite3").lock("a").acquire()


def test_a_temporary_directory_that_cannot_be_made(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    client = connect("sqlalchemy+sqlite://")
    with pytest.raises(lockkit.BackendUnavailable, match="in memory cannot be made: No such file"):
        client.lock("a").acquire()
    (tmp_path / "nowhere").mkdir()
    with client.lock("a"):
        assert client.lock("a").try_acquire() is None


def test_a_file_that_is_not_a_database(connect: Connect, path: Path) -> None:
    path.write_text("To be, or not to be, that is the question. " * 50)
    with pytest.raises(lockkit.BackendUnavailable, match="is not an SQLite database"):
        connect().lock("a").acquire()
    assert path.read_text().startswith("To be")


def test_the_database_of_an_application_is_left_alone(connect: Connect, path: Path) -> None:
    rows(path, "CREATE TABLE stock (sku, units)")
    with pytest.raises(lockkit.ConfigurationError, match="a file of its own"):
        connect().lock("a").acquire()
    assert rows(path, "SELECT name FROM sqlite_master") == [("stock",)]


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that the system says is mounted from elsewhere. Only root can mount one."""
    place = tmp_path / "a b\\.sqlite3"
    shown = str(place).replace("\\", "\\134").replace(" ", "\\040")
    told = tmp_path / "mountinfo"
    told.write_text(
        "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
        f"59 22 254:0 /elsewhere.sqlite3 {shown} rw,relatime shared:1 - ext4 /dev/vda rw\n"
    )
    monkeypatch.setattr(files, "MOUNTS", str(told))
    return place


@pytest.mark.parametrize("url", ["sqlite:///{}", "sqlalchemy+sqlite:///{}"])
def test_a_file_that_is_mounted_without_its_directory_is_refused(
    connect: Connect, mounted: Path, url: str
) -> None:
    """What SQLite and lockkit keep beside it would be seen by nobody else who mounts it."""
    client = connect(url.format(mounted))
    with pytest.raises(lockkit.ConfigurationError, match="mount the directory"):
        client.lock("a").acquire()
    beside = connect(url.format(mounted.with_name("other.sqlite3")))
    assert beside.lock("a").acquire().release()


def test_a_process_without_a_free_file_descriptor_is_not_refused(
    connect: Connect, path: Path
) -> None:
    """It passes by itself, so it is not a matter of rights."""
    with connect() as client:
        client.lock("a").acquire().release()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        with pytest.raises(lockkit.BackendUnavailable, match="Too many open files") as caught:
            client.lock("a").acquire()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not isinstance(caught.value, lockkit.StoreRefused)


def test_a_file_of_another_layout(connect: Connect, path: Path) -> None:
    with connect().lock("a"):
        pass
    rows(path, "PRAGMA user_version = 7")
    with pytest.raises(lockkit.LayoutMismatch, match="layout 7"):
        connect().lock("a").acquire()


def test_a_row_that_something_else_wrote(connect: Connect, path: Path) -> None:
    client = connect()
    with client.lock("a") as lease:
        rows(path, "UPDATE lockkit_lock SET state = '{\"v\": 99}'")
        with pytest.raises(lockkit.LayoutMismatch, match="layout 99"):
            lease.extend()
        rows(path, "UPDATE lockkit_lock SET state = 'nonsense'")
        with pytest.raises(lockkit.DamagedRecord, match="its state"):
            lease.extend()
        rows(path, "DELETE FROM lockkit_lock")
        with pytest.raises(lockkit.LeaseLost):
            lease.extend()
        lease.release()


def test_a_full_disk(connect: Connect, path: Path) -> None:
    """As SQLite reports it: the file may not grow."""
    client = connect(acquire_timeout=0)
    with client.lock("a"):
        pages = rows(path, "PRAGMA page_count")[0][0]
    backend = client.store
    assert isinstance(backend, SQLiteStore)
    backend._steps.use(lambda c: c.execute(f"PRAGMA max_page_count = {pages}", {}))
    with pytest.raises(lockkit.BackendUnavailable, match="the disk is full"):
        use_many_names(client)


def test_a_step_in_the_handler_of_a_signal_that_comes_within_a_step(connect: Connect) -> None:
    client = connect()
    backend = client.store
    assert isinstance(backend, SQLiteStore)

    def interrupted(connection: Connection) -> object:
        with client.lock("handler"):
            return connection.execute("SELECT 1", {}).rows

    assert backend._steps.use(interrupted)
    with client.lock("afterwards"):
        pass


def test_a_step_in_the_handler_of_a_signal_that_comes_while_a_connection_is_looked_at(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll object that is asked while it is asked raises RuntimeError."""
    client = connect()
    client.lock("a").acquire().release()
    looked_at: list[Connection] = []

    def is_stale(connection: Connection) -> bool:
        assert connection not in looked_at
        if not looked_at:
            looked_at.append(connection)
            client.lock("handler").acquire().release()
            looked_at.pop()
        return False

    monkeypatch.setattr(Connection, "is_stale", is_stale)
    client.lock("a").acquire().release()


def use_many_names(client: lockkit.LockClient) -> None:
    for number in range(1000):
        client.lock(f"{number}:{'x' * 200}").acquire().release()


@pytest.mark.parametrize("other", [os.unlink, lambda path: os.rename(path, f"{path}.old")])
def test_a_file_that_was_taken_away_is_not_used_any_more(
    connect: Connect, path: Path, other: Callable[[Path], None]
) -> None:
    """Two processes would else exclude one another each in a file of its own."""
    early = connect()
    lease = early.lock("a").acquire()
    lease.extend()
    other(path)
    for ending in ("-wal", "-shm"):
        os.unlink(f"{path}{ending}")
    with connect().lock("a") as late, connect().lock("b"):
        assert early.lock("b").try_acquire() is None
        assert late.fencing_token > lease.fencing_token
        with pytest.raises(lockkit.LeaseLost):
            lease.extend()
    lease.release()


def test_what_comes_after_the_close_leaves_no_connection(connect: Connect, path: Path) -> None:
    client = connect()
    lease = client.lock("a").acquire()
    client.close()
    assert client.lock("a").try_acquire() is None
    lease.release()
    files = [Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    assert not [file for file in files if file.exists() and str(path) in str(file.readlink())]


def test_others_that_write_for_too_long(connect: Connect, path: Path) -> None:
    client = connect(options={"timeout": 0.1})
    with client.lock("a"):
        pass
    writer = sqlite3.connect(path, isolation_level=None)
    try:
        writer.execute("BEGIN IMMEDIATE")
        assert client.inspect("a") is None  # readers are not blocked
        with pytest.raises(lockkit.BackendUnavailable, match=r"busy for more than 0.1 s"):
            client.lock("a").acquire()
        writer.execute("COMMIT")
    finally:
        writer.close()
    client.lock("a").acquire().release()


@pytest.mark.parametrize(
    "url",
    ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite://host/path", "sqlite:///a?mode=ro",
     "sqlite:////tmp/"],
)  # fmt: skip
def test_bad_urls(url: str) -> None:
    with pytest.raises(lockkit.ConfigurationError, match="the URL "):
        lockkit.connect(url)


@pytest.mark.parametrize("options", [{"timeout": 0}, {"timeout": "long"}, {"timeuot": 1}])
def test_bad_options(options: dict[str, object], path: Path) -> None:
    with pytest.raises(lockkit.ConfigurationError, match="OPTIONS"):
        lockkit.connect(f"sqlite:///{path}", options=options)


# Processes


def test_a_fork_does_not_share_sqlite_s_idea_of_its_locks(connect: Connect, path: Path) -> None:
    """SQLite in a child believes that it has the file locks of its parent: the parent must not
    have the file open while it forks. Each process then has locks of its own on the file."""
    client = connect()
    lease = client.lock("a").acquire()
    inode = path.stat().st_ino

    def child() -> bool:
        client.inspect("a")
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        ours = [
            line for line in locks if line[4] == str(os.getpid()) and line[5].endswith(f":{inode}")
        ]
        return bool(ours) and client.lock("a").try_acquire() is None and lease.lost

    assert forked(child)
    lease.check()
    assert lease.release()


def test_a_fork_while_other_threads_lock(connect: Connect) -> None:
    client = connect()
    stop = threading.Event()

    def work(number: int) -> None:
        while not stop.is_set():
            client.lock(f"busy:{number}").acquire().release()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            assert forked(lambda: client.lock("other").acquire().release())
    finally:
        stop.set()
        for thread in threads:
            thread.join()


# Rows


def test_what_is_stored_of_a_token_does_not_release(connect: Connect, path: Path) -> None:
    client = connect()
    with client.lock("a").acquire() as lease:
        ((text,),) = rows(path, "SELECT state FROM lockkit_lock")
        assert lease.token not in str(text)
        stolen = codec.decode(str(text), 0).holders[0].token
        request = Request("a", stolen, 30.0, "", Mode.TRY)
        assert not client.perform(client.store.release(request))
        lease.extend()


def test_prefixes_do_not_share_locks(connect: Connect) -> None:
    shop, bank = connect(key_prefix="shop"), connect(key_prefix="bank")
    with shop.lock("a"), bank.lock("a"):
        assert [info.name for info in shop.holders()] == ["a"]
    assert codec.row_id("ab", "c") != codec.row_id("a", "bc")


def test_a_listing_comes_in_pages(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PAGE", 7)
    client = connect()
    leases = [client.lock(f"n{number}").acquire() for number in range(50)]
    client.lock("free").acquire().release()
    assert sorted(info.name for info in client.holders()) == sorted(each.name for each in leases)
    for lease in leases:
        lease.release()
    assert list(client.holders()) == []


@pytest.fixture
def prunes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new name has the old rows pruned, from the first on."""
    monkeypatch.setattr(sql_store, "PRUNE_EVERY", 1)
    monkeypatch.setattr(table_rows.secrets, "token_hex", lambda _: "")


@pytest.mark.usefixtures("prunes")
def test_free_rows_are_pruned_after_a_day_and_fences_still_grow(
    connect: Connect, path: Path
) -> None:
    client = connect()
    with client.lock("old").acquire() as first:
        pass
    with client.lock("kept", ttl=7 * 24 * 3600).acquire() as kept:
        rows(path, "UPDATE lockkit_lock SET updated = updated - ?", OLD)
        client.lock("new").acquire().release()
        assert rows(path, "SELECT name FROM lockkit_lock ORDER BY name") == [("kept",), ("new",)]
        kept.extend()
    with client.lock("old").acquire() as second:
        assert second.fencing_token > first.fencing_token


def test_programs_that_use_one_name_each_prune_as_well(path: Path) -> None:
    def use(name: str) -> None:
        with lockkit.connect(f"sqlite:///{path}") as client, client.lock(name):
            pass

    for number in range(200):
        use(f"old:{number}")
    rows(path, "UPDATE lockkit_lock SET updated = updated - ?", OLD)
    for number in range(200):
        use(f"new:{number}")
    ((left,),) = rows(path, "SELECT count(*) FROM lockkit_lock WHERE name LIKE 'old:%'")
    assert left < 150


@pytest.mark.usefixtures("prunes")
def test_a_fence_that_is_ahead_of_the_clock_is_not_pruned(connect: Connect, path: Path) -> None:
    """The clock was wrong when it was granted, and the next one must be greater all the same."""
    client = connect()
    with client.lock("old").acquire() as first:
        pass
    rows(path, f"UPDATE lockkit_lock SET updated = updated - ?, fence = fence + {10**15}", OLD)
    client.lock("new").acquire().release()
    with client.lock("old").acquire() as second:
        assert second.fencing_token > first.fencing_token + 10**15


@pytest.mark.usefixtures("prunes")
def test_an_id_that_is_no_text_fails_no_other_name(connect: Connect, path: Path) -> None:
    client = connect()
    for name in ("old", "of others"):
        client.lock(name).acquire().release()
    rows(path, "UPDATE lockkit_lock SET updated = updated - ?", OLD)
    rows(path, "UPDATE lockkit_lock SET id = CAST(X'FF' AS TEXT) WHERE name LIKE 'of%'")
    with client.lock("new", timeout=0):
        left = rows(path, "SELECT name FROM lockkit_lock ORDER BY name")
    assert left == [("new",), ("of others",)]


@pytest.mark.usefixtures("prunes")
def test_a_row_of_another_release_does_not_fail_the_locks_of_other_names(
    connect: Connect, path: Path
) -> None:
    client = connect()
    for name in ("old", "of another release", "older"):
        client.lock(name).acquire().release()
    rows(path, "UPDATE lockkit_lock SET updated = updated - ?", OLD)
    rows(path, "UPDATE lockkit_lock SET state = '{\"v\": 99}' WHERE name LIKE 'of%'")
    with client.lock("new"):
        left = rows(path, "SELECT name FROM lockkit_lock ORDER BY name")
    assert left == [("new",), ("of another release",)]


def test_the_state_survives_its_encoding() -> None:
    state = State(
        7,
        [Holder("t1", "host\x1f1\x1fMain\x1f\u2603", 5, 1, 2, 3, 4, None)],
        [Waiter("t2", "", 6, 1, 2, 3, 9), Waiter("t3", "", 7, 1, 2, 3, None)],
        {"t4": (99, True), "t5": (98, False)},
    )
    assert codec.decode(codec.encode(state), 7) == state
    assert codec.encode(State(7)) == codec.FREE


def test_a_poll_makes_a_grant_whole_that_was_handed_over(connect: Connect) -> None:
    """Handed to one who sleeps, it is a short one: it would end before its first renewal."""
    backend = Steps(connect().store)
    holder = Request("n", "a" * 32, 60.0, "")
    waiter = Request("n", "b" * 32, 600.0, "", Mode.ENQUEUE)
    assert isinstance(backend.acquire(holder), Grant)
    assert isinstance(backend.acquire(waiter), Busy)
    backend.release(holder)
    [handed] = backend.holders("n")
    assert handed.left is not None and handed.left <= alive_for(600.0)
    polled = backend.acquire(waiter._replace(mode=Mode.POLL))
    [whole] = backend.holders("n")
    assert isinstance(polled, Grant) and polled.fence == handed.fence
    assert whole.left is not None
    assert min(polled.left, whole.left) > 500
    backend.release(waiter)


def test_many_are_extended_and_only_those_that_are_ours(connect: Connect) -> None:
    client = connect()
    number = 2 * sql_store.READ_AT_ONCE + 1
    leases = [client.lock(f"n{n}", ttl=60).acquire() for n in range(number)]
    requests = [lease._hold.request for lease in leases]
    requests[5] = requests[5]._replace(token="f" * 32)
    requests[7:7] = [requests[6]._replace(token="e" * 32)]  # the same name twice
    renewals = client.perform(client.store.extend(requests))
    assert [n for n, renewal in enumerate(renewals) if renewal.left is None] == [5, 7]
    for lease in leases:
        assert lease.release()


def test_a_table_is_made_in_servers_only() -> None:
    with pytest.raises(lockkit.ConfigurationError, match="not in sqlite"):
        create_table(sqlalchemy.create_engine("sqlite://"))


def test_a_server_that_hangs_is_given_up(
    postgres_server: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing comes back, and nobody says why: each thread hears of it, none waits for ever."""
    url = postgres_url.replace("postgresql://", "postgresql+psycopg://")
    engine = sqlalchemy.create_engine(url)
    create_table(engine)
    engine.dispose()
    with FaultProxy("127.0.0.1", postgres_server.port) as proxy:
        far = url.replace(f":{postgres_server.port}", f":{proxy.port}")
        with lockkit.connect(f"sqlalchemy+{far}?connect_timeout=2") as client:
            lease = client.lock("a").acquire()
            proxy.half_open()
            started = now()
            with ThreadPoolExecutor() as threads, monkeypatch.context() as patch:
                patch.setattr(guard, "STEP_SECONDS", 0.5)
                patch.setattr(connector, "TURN_SECONDS", 1.0)
                attempts = threads.map(lambda _: refusal(client.lock("b").try_acquire), range(3))
                errors = list(attempts)
            assert all(isinstance(error, lockkit.BackendError) for error in errors)
            assert now() - started < 20
            lease.check()  # unknown is not lost
            proxy.half_open(False)
            lease.extend()
            assert lease.release()


def refusal(work: Callable[[], object]) -> Exception | None:
    try:
        work()
    except lockkit.LockError as error:
        return error
    return None


# Applications' databases


@pytest.mark.parametrize(
    ("database", "expected"),
    [
        ("shop.sqlite3", "shop.lockkit.sqlite3"),
        ("./x/../shop.sqlite3", "shop.lockkit.sqlite3"),
        ("file:shop.db?mode=rwc", "shop.lockkit.db"),
        ("file:my%20shop.db?mode=rwc", "my shop.lockkit.db"),
        ("my%20shop#1.db", "my%20shop#1.lockkit.db"),
        ("shop", "shop.lockkit"),
    ],
)
def test_the_file_beside_a_database(
    database: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    assert path_beside(database) == tmp_path.resolve() / expected


@pytest.mark.parametrize(
    "spelled",
    [
        "file:{here}/a%20%C3%A9%zz%3F%23.db?mode=rwc#x",
        "file:{here}/a.db#x?y",
        "file://{here}/a.db?mode=rwc",
        "file://localhost{here}/a.db",
    ],
)
def test_the_path_of_a_database_is_the_one_that_sqlite_opens(spelled: str, tmp_path: Path) -> None:
    uri = spelled.format(here=tmp_path)
    with closing(sqlite3.connect(uri, uri=True)) as database:
        database.execute("CREATE TABLE stock (units)")
    (opened,) = tmp_path.iterdir()
    assert path_beside(uri) == path_beside(str(opened))


def test_an_engine_on_sqlite_gets_a_file_beside_it(tmp_path: Path, connect: Connect) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'shop.sqlite3'}")
    by_engine = connect("sqlalchemy://", options={"engine": engine})
    by_url = connect(f"sqlalchemy+sqlite:///{tmp_path / 'shop.sqlite3'}")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE stock (units)")  # a write transaction is open
        with by_engine.lock("a"):
            assert by_url.lock("a").try_acquire() is None
    assert (tmp_path / "shop.lockkit.sqlite3").exists()
    engine.dispose()


def test_engines_whose_urls_name_no_file_exclude_one_another_by_the_file_they_open(
    connect: Connect, tmp_path: Path
) -> None:
    def creator() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "shop.sqlite3")

    engines = [sqlalchemy.create_engine("sqlite://", creator=creator) for _ in range(2)]
    one, other = (connect("sqlalchemy://", options={"engine": engine}) for engine in engines)
    with one.lock("a"):
        assert other.lock("a").try_acquire() is None
    assert (tmp_path / "shop.lockkit.sqlite3").exists()
    for engine in engines:
        engine.dispose()


def test_an_engine_that_opens_nothing(connect: Connect, tmp_path: Path) -> None:
    def creator() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "nowhere" / "shop.sqlite3")

    engine = sqlalchemy.create_engine("sqlite://", creator=creator)
    with pytest.raises(lockkit.BackendUnavailable, match="unable to open database file"):
        connect("sqlalchemy://", options={"engine": engine})


def test_what_others_do_over_the_only_connection_in_memory_is_not_undone(connect: Connect) -> None:
    engine = sqlalchemy.create_engine("sqlite://", poolclass=sqlalchemy.StaticPool)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE stock (units)")
        connection.exec_driver_sql("INSERT INTO stock VALUES (1)")
        with connect("sqlalchemy://", options={"engine": engine}).lock("a"):
            assert connection.exec_driver_sql("SELECT units FROM stock").scalars().all() == [1]
    engine.dispose()


def test_a_database_in_memory_gets_a_temporary_file(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    client = connect("sqlalchemy+sqlite://")
    client.perform(client.store.check())
    with client.lock("a"):
        assert client.lock("a").try_acquire() is None
        assert list(tmp_path.glob("lockkit-*/locks.sqlite3"))
    client.close()
    assert not list(tmp_path.iterdir())
    client.perform(client.store.check())
    client.lock("a").acquire().release()  # it may be used again
    for directory in tmp_path.iterdir():  # as systemd does with what nobody used for ten days
        shutil.rmtree(directory)
    client.lock("a").acquire().release()
    collected()  # on Python 3.13, a connection of its engine would warn


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("sqlalchemy://", {}, "OPTIONS {'engine': engine}"),
        ("sqlalchemy://", {"engine": "postgresql://"}, "must be a sqlalchemy.Engine"),
        ("sqlalchemy://", {"engine": ENGINE, "password": "canary"}, "has its own password"),
        ("postgresql://u:canary@h/d", {"engine": ENGINE}, "must be 'sqlalchemy://'"),
        ("sqlalchemy://?tll=3", {"engine": ENGINE}, "must be 'sqlalchemy://'"),
        ("sqlalchemy+nonsense", {}, "has no scheme"),
        ("sqlalchemy+martian://u:canary@h/d", {}, "not one that SQLAlchemy knows"),
    ],
)
def test_bad_engines(url: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(lockkit.ConfigurationError, match=message) as caught:
        load_store(settings_from_url(url, options=options))
    assert "canary" not in str(caught.value)


def test_another_driver_is_refused() -> None:
    module: Any = ModuleType("cymysql")
    module.paramstyle = "format"
    engine = sqlalchemy.create_engine("mysql+pymysql://", module=module)
    with pytest.raises(lockkit.ConfigurationError, match=r"PyMySQL or mysqlclient, not cymysql$"):
        lockkit.connect(client=engine)


def test_the_core_needs_no_driver_for_sqlite(path: Path) -> None:
    program = (
        "import sys, lockkit\n"
        f"with lockkit.connect('sqlite:///{path}').lock('a'): pass\n"
        "assert not {'sqlalchemy', 'django', 'redis', 'asyncio'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


INTERRUPTED_FORK = """
import os, threading
import lockkit
from lockkit.runtime import process

class Signal:
    calls = 0
    def before(self): ...
    def in_parent(self):
        self.calls += 1
        if self.calls == 1:
            raise KeyboardInterrupt

signal = Signal()
process.around_fork(signal.before, signal.in_parent)
with lockkit.connect("sqlite:///locks.sqlite3") as locks:
    locks.lock("a").acquire().release()
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    other = threading.Thread(target=lambda: print(locks.lock("b", timeout=0).acquire().release()))
    other.start()
    other.join()
"""


def test_a_signal_during_a_fork_leaves_the_store_to_the_other_threads(tmp_path: Path) -> None:
    """CPython drops what its handler raises after the fork, and with that the rest of the step."""
    command = [sys.executable, "-c", INTERRUPTED_FORK]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "KeyboardInterrupt" in done.stderr
    assert done.stdout == "True\n"
