"""Real servers for the tests, started side by side when the first test asks for one of them."""

from __future__ import annotations

import functools
import gc
import importlib.metadata
import logging
import os
import secrets
import select
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

import pytest
from costs import Meter, slowest_files
from databases import empty_database
from hypothesis import HealthCheck, settings
from selection import needs_redis_at_most, takes_long, turn

import lockkit
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import (
    MariaDBServer,
    MissingServer,
    PostgresServer,
    RedisServer,
    Server,
    ValkeyServer,
)

IN_CI = os.environ.get("CI", "").lower() in {"1", "true", "yes"}
MARKER = "LOCKKIT_TEST_RUN"
TIMED = {signal.SIGALRM}
"""pytest-timeout handles this one, and stops when a test has failed."""

GRACE_SECONDS = 30.0
RESOURCE_TRACKER = "multiprocessing.resource_tracker"  # lives as long as its interpreter

METER = Meter()

# redis-py looks up its own version, in files, for each connection.
importlib.metadata.version = functools.cache(importlib.metadata.version)

# On a disk, each COMMIT of SQLite takes milliseconds, and so does each file of a new database.
IN_MEMORY = Path("/dev/shm")
PLENTY_BYTES = 8 << 30  # a run needs less than one


def directory_of_runs() -> str:
    has_plenty = os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free > PLENTY_BYTES
    return str(IN_MEMORY) if has_plenty and "TMPDIR" not in os.environ else tempfile.gettempdir()


# Processes that are killed leave files behind: they are below this directory, which goes at the end
# of the run. Only pytest keeps its own, of the tests that failed, next to it.
IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ  # it has the environment of the run
if not IS_WORKER:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", directory_of_runs())
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp("", "lockkit-", directory_of_runs())
    Path(tempfile.tempdir).chmod(0o1777)  # as the system's: servers run as users of their own

# Tests connect to their own servers only. Reading the system's certificates takes PyMySQL 30 ms for
# each connection. A test of what is trusted by default sets its own.
os.environ["SSL_CERT_FILE"] = os.devnull

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

SomeServer = TypeVar("SomeServer", bound=AbstractContextManager[object])

SERVERS: dict[str, type[Server]] = {
    "redis_server": RedisServer,
    "valkey_server": ValkeyServer,
    "postgres_server": PostgresServer,
    "mariadb_server": MariaDBServer,
}
"""By the names of their fixtures."""


class Servers(Protocol):
    def __call__(self, kind: type[SomeServer]) -> SomeServer: ...


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left() -> Iterator[None]:
    """Fails the run when a process that a test started is still there at its end."""
    os.environ[MARKER] = run = secrets.token_hex(8)
    yield
    left = [*_descendants_marked(run)]
    assert not left, "processes left running:\n" + "\n".join(left)


@pytest.fixture(autouse=True)
def the_process_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The order is random, so what one test changes in the process could fail any other."""
    before = _of_the_process()
    yield
    monkeypatch.undo()  # a plugin has asked for it first, so it would be undone after this
    assert _of_the_process() == before


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest, no_process_is_left: None) -> Iterator[Servers]:
    """All that the collected tests name are started side by side, once for this process of the
    run: its tests empty them. One that cannot start fails those tests that ask for it."""
    items = request.session.items
    named = {name for item in items for name in getattr(item, "fixturenames", ())}
    started: dict[type[object], object] = {}

    def start(kind: type[AbstractContextManager[object]]) -> None:
        try:
            started[kind] = stack.enter_context(kind())
        except Exception as error:  # noqa: BLE001  it is for those tests
            started[kind] = error

    def running(kind: type[SomeServer]) -> SomeServer:
        if kind not in started:  # nobody had named it
            start(kind)
        server = started[kind]
        if isinstance(server, Exception):
            raise server
        assert isinstance(server, kind)
        return server

    with ExitStack() as stack:
        with ThreadPoolExecutor() as threads:
            threads.map(start, [kind for name, kind in SERVERS.items() if name in named])
        yield running


@pytest.fixture(scope="module")
def groups() -> Iterator[Servers]:
    """Groups of servers, each started once for a file of tests. Idle, they take CPU: three
    Sentinels alone 20 seconds in a run."""
    started: dict[type[AbstractContextManager[object]], object] = {}
    with ExitStack() as stack:

        def running(kind: type[SomeServer]) -> SomeServer:
            if kind not in started:
                started[kind] = stack.enter_context(kind())
            group = started[kind]
            assert isinstance(group, kind)
            return group

        yield running


@pytest.fixture
def memory() -> Iterator[lockkit.LockClient]:
    """A client of an empty store in this process."""
    with lockkit.connect("memory://") as client:
        yield client


@pytest.fixture(scope="session")
def redis_server(servers: Servers) -> RedisServer:
    return servers(RedisServer)


@pytest.fixture(scope="session")
def valkey_server(servers: Servers, other_servers: None) -> ValkeyServer:
    return servers(ValkeyServer)


@pytest.fixture(scope="session")
def postgres_server(servers: Servers, other_servers: None) -> PostgresServer:
    return servers(PostgresServer)


@pytest.fixture(scope="session")
def mariadb_server(servers: Servers, other_servers: None) -> MariaDBServer:
    return servers(MariaDBServer)


@pytest.fixture(scope="session")
def other_servers(request: pytest.FixtureRequest) -> None:
    """Servers other than Redis, which a quick run does not have."""
    assert not request.config.getoption("quick"), "not with --quick: see kit/selection.py"


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The URL of a Redis without data."""
    redis_server.flush()
    return redis_server.url


@pytest.fixture
def valkey_url(valkey_server: ValkeyServer) -> str:
    valkey_server.flush()
    return valkey_server.url


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of an empty database."""
    with empty_database(postgres_server) as url:
        yield url


@pytest.fixture
def lock_table_url(postgres_url: str) -> str:
    """For ``connect()``: an empty PostgreSQL database with the table of locks."""
    from lock_tables import make_table

    make_table(postgres_url)
    return postgres_url


@pytest.fixture
def mariadb_url(mariadb_server: MariaDBServer) -> Iterator[str]:
    with empty_database(mariadb_server) as url:
        yield url


@pytest.fixture
def proxy() -> Iterator[Callable[[Server], FaultProxy]]:
    """``proxy(redis_server)``: a started FaultProxy in front of a server."""
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(FaultProxy("127.0.0.1", server.port))


gc.disable()  # until all tests are collected: they stay, and are not garbage


def pytest_collection_finish() -> None:
    """The garbage collector no longer looks through what was imported and collected: that would
    cost more than many of the tests."""
    gc.freeze()
    gc.enable()
    METER.start()


def pytest_sessionstart() -> None:
    """Under ``nohup`` or in the background of a script, signals are ignored. We still do nothing
    then, but the programs that the tests start and send signals to do not inherit that."""
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="a minute's worth, with Redis alone")
    parser.addoption(
        "--whole", action="store_true", help="the whole conformance suite over each way to a store"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes long comes first, so that no worker is still at it when the others are done.

    The order within is random: this comes after the plugin that shuffles.
    """
    items.sort(key=turn)
    if config.getoption("quick"):
        config.hook.pytest_deselected(items=[i for i in items if not needs_redis_at_most(i)])
        items[:] = filter(needs_redis_at_most, items)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.getoption("quick") and takes_long(collection_path) else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    with _skipping_if_missing():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    with _skipping_if_missing():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A lease or a socket that a failed test left behind must not fail the next one as well."""
    before = item.session.testsfailed
    result = yield
    if item.session.testsfailed > before:
        _let_go_of_the_failed()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    METER.put_on(report)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    if IN_CI and _skipped(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure() -> None:
    if not IS_WORKER:
        shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = _skipped(terminalreporter.config)
    verdict = ": CI allows none" if IN_CI and skipped else ""
    terminalreporter.section("slowest files")
    reports = (report for found in terminalreporter.stats.values() for report in found)
    for line in slowest_files(reports):
        terminalreporter.write_line(line)
    terminalreporter.write_line(f"{skipped} tests were skipped{verdict}", red=bool(verdict))


def _of_the_process() -> dict[str, object]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    return {
        "environ": environ,
        "directory": Path.cwd(),
        "level": logging.root.level,
        "disabled": logging.root.manager.disable,
        "signals": [
            signal.getsignal(each) for each in range(1, signal.SIGRTMIN) if each not in TIMED
        ],
        "collects": gc.isenabled(),
        "profiled": (sys.getprofile(), sys.gettrace()),
    }


def _let_go_of_the_failed() -> None:
    """The frames of the test, which the last traceback keeps, and what only they refer to."""
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        sys.__dict__.pop(name, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


def _skipped(config: pytest.Config) -> int:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return len(reporter.stats.get("skipped", ())) if reporter else 0


@contextmanager
def _skipping_if_missing() -> Iterator[None]:
    """A server that is not installed fails CI; elsewhere it skips and says how to install it."""
    try:
        yield
    except MissingServer as missing:
        if IN_CI:
            raise
        pytest.skip(str(missing))


def _descendants_marked(run: str) -> Iterator[str]:
    """What still runs with our mark in its environment, after a moment to end by itself."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
            program = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # it is not ours, or has just ended
        marked = f"{MARKER}={run}".encode() in environment.split(b"\0")
        if marked and RESOURCE_TRACKER not in program and not _ends(int(process.name)):
            yield f"{process.name} {program}"


def _ends(pid: int) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], GRACE_SECONDS)[0])
    finally:
        os.close(descriptor)
