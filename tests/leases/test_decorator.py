"""``@locked``: functions and coroutines that run while they hold a lock."""

from __future__ import annotations

import asyncio
import functools
import inspect
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from forking import in_child

import lockkit
from lockkit import aio
from lockkit.leases.client import Lease, LockClient
from lockkit.model.errors import ConfigurationError, InvalidName, LeaseLost, LockHeld
from lockkit.stores.memory import MemoryStore


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LockClient]:
    """The store that the decorator finds in the environment."""
    url = f"sqlite:///{tmp_path}/locks.sqlite3"
    monkeypatch.setenv("LOCKKIT_URL", url)
    client = lockkit.connect(url)
    yield client
    client.close()


def held(locks: LockClient) -> dict[str, str]:
    return {info.name: info.owner.label for info in locks.holders() if info.owner}


def test_a_function_holds_the_lock_while_it_runs(locks: LockClient) -> None:
    @lockkit.locked("report:{day}")
    def report(day: str, *, copies: int = 1) -> dict[str, str]:
        """Print it."""
        return held(locks)

    (name,) = report("2026:11")
    assert name == lockkit.name("report:{day}", day="2026:11") == "report:2026%3A11"
    assert report(day="b", copies=2)["report:b"].endswith("report")
    assert held(locks) == {}
    assert (report.__name__, report.__doc__) == ("report", "Print it.")


async def test_a_coroutine_does(locks: LockClient) -> None:
    @lockkit.locked("report:{day}")
    async def report(day: str) -> dict[str, str]:
        await asyncio.sleep(0)
        return await asyncio.to_thread(held, locks)

    assert list(await report("a")) == ["report:a"]
    assert held(locks) == {}


def test_each_loop_has_a_client_that_ends_with_it(locks: LockClient) -> None:
    @lockkit.locked("nightly", timeout=0)
    async def nightly() -> int:
        return len(await asyncio.to_thread(held, locks))

    assert [asyncio.run(nightly()) for _ in range(3)] == [1, 1, 1]


def test_in_memory_functions_and_coroutines_of_all_loops_exclude_one_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCKKIT_URL", "memory://")

    @lockkit.locked("job", timeout=0, when_held="skip")
    async def inner() -> str:
        return "done"

    @lockkit.locked("job", timeout=0)
    def function() -> str | None:
        return asyncio.run(inner())

    @lockkit.locked("job", timeout=0)
    async def coroutine() -> str | None:
        return await asyncio.to_thread(function_in_another_loop)

    def function_in_another_loop() -> str | None:
        return asyncio.run(inner())

    assert function() is None
    assert asyncio.run(coroutine()) is None
    assert asyncio.run(inner()) == "done"


def test_a_method_a_default_and_keywords(locks: LockClient) -> None:
    class Reports:
        @lockkit.locked("{kind}:{day}:{note}")
        def make(self, day: int, kind: str = "daily", **notes: str) -> list[str]:
            return list(held(locks))

    assert Reports().make(7, note="x") == ["daily:7:x"]
    assert Reports().make(kind="weekly", day=8, note="y") == ["weekly:8:y"]


def test_a_callable_names_the_lock(locks: LockClient) -> None:
    @lockkit.locked(lambda order: f"order:{order['id']}")
    def pay(order: dict[str, int]) -> list[str]:
        return list(held(locks))

    assert pay({"id": 7}) == ["order:7"]


def test_held_by_somebody_else(locks: LockClient) -> None:
    calls: list[str] = []

    @lockkit.locked("job", timeout=0)
    def job() -> None:
        calls.append("job")

    @lockkit.locked("job", timeout=0.01, when_held="skip")
    def skipped() -> str:
        calls.append("skipped")
        return "done"

    @lockkit.locked("job", timeout=0, when_held="skip")
    async def coroutine() -> str:
        calls.append("coroutine")
        return "done"

    with locks.lock("job", ttl=60).acquire():
        with pytest.raises(LockHeld):
            job()
        assert skipped() is None
        assert asyncio.run(coroutine()) is None
    assert calls == []
    assert skipped() == asyncio.run(coroutine()) == "done"


def test_what_is_skipped_is_logged_with_the_name_and_its_holder(
    locks: LockClient, caplog: pytest.LogCaptureFixture
) -> None:
    @lockkit.locked("report:{day}", when_held="skip")
    def report(day: str) -> None:
        raise AssertionError

    with caplog.at_level("INFO", "lockkit"), locks.lock("report:monday", label="by hand").acquire():
        report("monday")
    (told,) = caplog.messages
    assert "report is skipped: 'report:monday' is held" in told
    assert "by hand" in told


def test_what_is_skipped_does_not_wait_unless_told(locks: LockClient) -> None:
    """Without a timeout it would wait for that of the client: ten seconds."""
    calls: list[str] = []

    @lockkit.locked("job", when_held="skip")
    def skipped() -> None:
        calls.append("skipped")

    @lockkit.locked("job", when_held="skip")
    async def coroutine() -> None:
        calls.append("coroutine")

    @lockkit.locked("job", when_held="skip", timeout=60)
    def patient() -> str:
        return "done"

    with ThreadPoolExecutor(2) as threads:
        with locks.lock("job", ttl=60).acquire():
            waiting = threads.submit(patient)
            while not next(locks.holders("job")).waiters:
                threading.Event().wait(0.01)
            for call in (skipped, lambda: asyncio.run(coroutine())):
                ended = threads.submit(call)
                while not ended.done():
                    assert next(locks.holders("job")).waiters == 1
                ended.result()
        assert waiting.result() == "done"
    assert calls == []


@pytest.mark.parametrize("day", [("monday",), {"day": "monday"}])
def test_the_lease_goes_wherever_its_parameter_stands(locks: LockClient, day: Any) -> None:
    def first(lease: Lease, day: str) -> tuple[bool, str]:
        return lease.lost, day

    def last(day: str, lease: Lease) -> tuple[bool, str]:
        return lease.lost, day

    def by_keyword(day: str, *, lease: Lease) -> tuple[bool, str]:
        return lease.lost, day

    def before_others(day: str, lease: Lease, /, *others: str) -> tuple[bool, str]:
        return lease.lost, day

    args, kwargs = (day, {}) if isinstance(day, tuple) else ((), day)
    for function in (first, last, by_keyword, *([before_others] if args else [])):
        report = lockkit.locked("report:{day}", lease_as="lease")(function)
        assert report(*args, **kwargs) == (False, "monday")
        assert "lease" not in inspect.signature(report).parameters


def test_the_function_gets_the_lease(locks: LockClient) -> None:
    @lockkit.locked("job", ttl=60, lease_as="lease")
    def job(lease: Lease | None = None) -> int:
        assert lease is not None
        lease.check()
        return lease.fencing_token

    @lockkit.locked("job", ttl=60, lease_as="lease")
    async def coroutine(**kwargs: Any) -> int:
        assert isinstance(kwargs["lease"], aio.AsyncLease)
        return kwargs["lease"].fencing_token

    assert job() < asyncio.run(coroutine()) < job()


def test_a_lock_lost_on_the_way_is_an_error_at_the_end(locks: LockClient) -> None:
    @lockkit.locked("job", ttl=60, lease_as="lease")
    def job(lease: Lease) -> None:
        assert locks.break_("job", fence=lease.fencing_token)

    with pytest.raises(LeaseLost):
        job()


def test_an_error_passes_and_releases(locks: LockClient) -> None:
    @lockkit.locked("job", timeout=0)
    def job() -> None:
        raise ValueError("of the job")

    for _ in range(2):
        with pytest.raises(ValueError, match="of the job"):
            job()
    assert held(locks) == {}


@pytest.mark.parametrize("value", [None, "", 1.5, True, b"x", ["a"]])
def test_values_that_make_no_name(locks: LockClient, value: object) -> None:
    @lockkit.locked("report:{day}")
    def report(day: object) -> None:
        raise AssertionError("it ran")

    with pytest.raises(InvalidName):
        report(value)


def _function(day: str) -> None: ...


def _generator() -> Iterator[int]:
    yield 1


async def _stream() -> AsyncIterator[int]:
    yield 1


def hiding(function: Callable[..., Any]) -> Callable[..., Any]:
    """As decorators do that know nothing of coroutines: the call only makes one."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return called


async def _later() -> None:
    raise AssertionError("it ran")


def _task() -> Any:
    return asyncio.ensure_future(_later())


def _submitted() -> Any:
    """As a pool makes it, which may take it up at any time."""
    return Future()


@pytest.mark.parametrize(
    ("function", "returned"),
    [
        (_later, "coroutine"),
        (_task, "Task"),
        (_generator, "generator"),
        (_stream, "async_gen"),
        (_submitted, "Future"),
    ],
)
async def test_what_goes_on_after_the_release_is_refused(
    locks: LockClient, function: Any, returned: str
) -> None:
    hidden = hiding(function)

    async def twin() -> Any:
        return hidden()

    with pytest.raises(ConfigurationError, match=f"returned an? {returned}.* directly above"):
        lockkit.locked("report", timeout=0)(hidden)()
    with pytest.raises(ConfigurationError, match=f"twin returned a {returned}"):
        await lockkit.locked("report", timeout=0)(twin)()
    await asyncio.sleep(0)  # a task that was not cancelled begins
    assert held(locks) == {}


def test_a_future_that_is_done_is_returned(locks: LockClient) -> None:
    def function() -> Future[int]:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: 42)

    assert lockkit.locked("report", timeout=0)(function)().result() == 42


@pytest.mark.parametrize("function", [contextmanager(_generator), asynccontextmanager(_stream)])
async def test_so_is_a_context_manager(locks: LockClient, function: Any) -> None:
    async def twin() -> Any:
        return function()

    said = "returned a context manager, whose block would run after the release: take the lock in"
    with pytest.raises(ConfigurationError, match=f"(_generator|_stream) {said}"):
        lockkit.locked("report", timeout=0)(function)()
    with pytest.raises(ConfigurationError, match=f"twin {said}"):
        await lockkit.locked("report", timeout=0)(twin)()
    assert held(locks) == {}


class Job:
    def __init__(self, day: str) -> None:
        self.day = day

    def __call__(self, locks: LockClient, *, day: str = "") -> dict[str, str]:
        return held(locks)


class AsyncJob(Job):
    async def __call__(self, locks: LockClient, *, day: str = "") -> dict[str, str]:
        return await asyncio.to_thread(held, locks)


class Rows(Job):
    def __call__(self) -> Iterator[int]:
        yield 1


def test_what_is_called_like_a_function(locks: LockClient) -> None:
    report = lockkit.locked("report:{day}")
    for job in (
        Job("x"),
        functools.partial(Job("x"), day="a"),
        functools.partial(Job("x").__call__),
    ):
        assert report(job)(locks, day="a").keys() == {"report:a"}
    for job in (AsyncJob("x"), functools.partial(AsyncJob("x"))):
        assert asyncio.run(report(job)(locks, day="b")) == {"report:b": "AsyncJob"}
    with pytest.raises(ConfigurationError, match="Rows is a generator"):
        report(functools.partial(Rows("x")))


def test_a_child_that_is_forked_while_another_thread_makes_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That thread stays in the parent, and the mutexes that it holds stay held."""
    monkeypatch.setenv("LOCKKIT_URL", "memory://forked")
    making, go_on = threading.Event(), threading.Event()
    make = MemoryStore.__init__
    job = lockkit.locked("job", timeout=0)(lambda: "done")

    def slowly(backend: MemoryStore) -> None:
        making.set()
        assert go_on.wait(60)
        make(backend)

    with monkeypatch.context() as patched, ThreadPoolExecutor(1) as threads:
        patched.setattr(MemoryStore, "__init__", slowly)
        first = threads.submit(job)
        assert making.wait(60)
        patched.undo()
        try:
            in_child(job)
        finally:
            go_on.set()
        assert first.result() == "done"


@pytest.mark.parametrize(
    ("name", "options", "function", "match"),
    [
        ("report:{dya}", {}, _function, "no parameter 'dya'; it has day"),
        ("report:{user.pk}", {}, _function, "use a plain field, such as {pk}"),
        ("report:{request.user}", {}, _function, "use a plain field, such as {user}"),
        ("report:{day", {}, _function, "unmatched brace"),
        ("report:<date:day>", {}, _function, "a field is written {day}"),
        ("report:%(day)s", {}, _function, "a field is written {day}"),
        ("x", {"lease_as": "lease"}, _function, "no parameter 'lease'"),
        ("x", {"lease_as": "days"}, lambda *days: None, "no parameter 'days'; it has none"),
        ("x", {"ttl": 0}, _function, "ttl"),
        ("x", {"timeout": -1}, _function, "timeout"),
        ("x", {"timout": 1}, _function, "no option 'timout': did you mean 'timeout'"),
        ("x", {"when_held": "wait"}, _function, "'raise' or 'skip'"),
        ("x", {}, _generator, "generator"),
        ("x", {}, _stream, "generator"),
        ("x", {}, dict, "method"),
        ("x", {}, classmethod(_function), "below @classmethod"),
    ],
)
def test_what_is_wrong_is_said_at_once(
    name: str, options: dict[str, Any], function: Any, match: str
) -> None:
    with pytest.raises((ConfigurationError, InvalidName), match=match):
        lockkit.locked(name, **options)(function)


def test_nothing_is_imported_for_those_who_do_not_use_it() -> None:
    code = "import sys, lockkit; print({'inspect', 'asyncio'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"


def test_without_its_parentheses_it_says_what_to_write() -> None:
    with pytest.raises(ConfigurationError, match=r"write @locked\('stock:\{sku\}'\)"):

        @lockkit.locked
        def report() -> None: ...
