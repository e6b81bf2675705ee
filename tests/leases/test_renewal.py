"""The watchdog misses no renewal, and a holder never believes too much."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from steps import Steps

import lockkit
import lockkit.aio
from lockkit.engine.effects import Step
from lockkit.engine.holding import renew
from lockkit.engine.times import drift
from lockkit.model.clock import now
from lockkit.model.errors import (
    BackendUnavailable,
    ConfigurationError,
    DamagedRecord,
    LayoutMismatch,
    OutcomeUnknown,
    StoreRefused,
)
from lockkit.model.settings import settings_from_url
from lockkit.model.types import Granted, LeaseState, Release, Renewal, Request
from lockkit.runtime.hold import Hold
from lockkit.runtime.schedule import RETRY, Schedule
from lockkit.runtime.watchdog import Watchdog
from lockkit.stores.registry import load_store
from lockkit.testing.blocking import Api, BlockingClient, client_of
from lockkit.testing.conformance.base import at_least_once, eventually, queued
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import RedisServer

TTL = 30.0
START = 100.0
HELD, UNKNOWN, LOST = LeaseState


def request(token: str = "a") -> Request:
    return Request("stock:42", token, TTL, "owner")


def hold(token: str = "a", kind: type[Hold] = Hold) -> Hold:
    return kind(Granted(request(token), 1, START + TTL - drift(TTL), START))


@pytest.fixture
def client() -> Iterator[lockkit.LockClient]:
    client = lockkit.connect("memory://", ttl=TTL)
    yield client
    client.close()


@pytest.mark.parametrize("extended", [TTL / 10, TTL, 20 * TTL])
def test_a_renewal_never_leaves_less_than_the_holder_asked_for(extended: float) -> None:
    schedule, held = Schedule(), hold()
    schedule.add(held)
    asked = held.ask(extended, START)
    held.renewed(asked.number, START, extended, START)
    moment, step = START, extended / 200
    while schedule.take_due(moment) == ([], [], []):
        moment += step
    before, left = held.deadline, START + extended - moment
    assert left > min(extended, TTL) / 2  # while there is time to try again
    assert moment - START <= TTL / 3  # and to hear of a loss
    asked = held.ask(held.wanted(moment), moment)
    held.renewed(asked.number, moment, asked.ttl, moment)
    assert held.deadline >= before - 1e-6


def test_a_pass_of_the_watchdog_does_not_cut_an_extension_down(
    client: lockkit.LockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins when the store has done the extension, and the reply is not here yet."""
    lease, extend = client.lock("stock:42").acquire(), client.store.extend

    def extending(requests: Any) -> Step[Any]:
        reply = yield from extend(requests)
        monkeypatch.setattr(client.store, "extend", extend)
        client.perform(renew(client.store, [lease._hold]))
        return reply

    monkeypatch.setattr(client.store, "extend", extending)
    lease.extend(20 * TTL)
    info = client.inspect("stock:42")
    assert info is not None and info.left is not None
    assert min(info.left, lease.remaining()) > 10 * TTL
    assert lease.release()


class TestASchedule:
    """Releases do not wait for the runner, so holds vanish while it goes through them."""

    def test_a_lost_hold_is_released_while_it_is_being_forgotten(self) -> None:
        schedule = Schedule()

        class Vanishing(Hold):
            def renewable(self, now: float) -> bool:
                schedule.discard(self)
                return False

        schedule.add(hold("a", Vanishing))
        assert schedule.take_due(START) == ([], [], [])

    def test_a_hold_is_released_while_the_next_renewal_is_looked_for(self) -> None:
        schedule = Schedule()

        armed = False

        class Releasing(Hold):
            @property
            def due(self) -> float:
                if armed:
                    schedule.discard(self)
                return START + 1

            @due.setter
            def due(self, moment: float) -> None:
                pass

        for token in "abc":
            schedule.add(hold(token, Releasing))
        armed = True
        assert schedule.sleep_until(START) == START + 1


class TestTwoExtensionsAtOnce:
    """The store does them in the order in which they were asked for, or leaves the earlier out."""

    @pytest.mark.parametrize("first_reply_first", [True, False])
    @pytest.mark.parametrize(("first", "second"), [(1.0, TTL), (TTL, 1.0)])
    def test_the_later_counts_whichever_reply_comes_first(
        self, first: float, second: float, first_reply_first: bool
    ) -> None:
        ours = hold()
        replies = [(ours.ask(ttl, START + 0.1).number, ttl) for ttl in (first, second)]
        for number, left in replies if first_reply_first else reversed(replies):
            ours.renewed(number, START + 0.2, left, START + 0.4)
        assert ours.deadline == pytest.approx(START + 0.2 + second - drift(second))

    def test_one_without_a_reply_counts_as_done_until_a_later_one_is(self) -> None:
        ours = hold()
        lost = ours.ask(2.0, START + 1)
        assert lost.ttl == 2.0
        assert ours.deadline == pytest.approx(START + 3 - drift(2.0))
        ours.renewed(ours.ask(TTL, START + 2).number, START + 2, TTL, START + 2.1)
        assert ours.deadline == pytest.approx(START + 2 + TTL - drift(TTL))

    def test_a_renewal_under_way_does_not_undo_a_shorter_extension(self) -> None:
        ours = hold()
        renewal = ours.ask(TTL, START + 0.9)
        ours.ask(2.0, START + 1)
        ours.renewed(renewal.number, START + 0.9, TTL, START + 1.1)
        assert ours.deadline <= START + 3

    def test_what_was_asked_for_long_ago_is_forgotten(self) -> None:
        ours = hold()
        for second in range(1000):
            moment = START + second
            ours.renewed(ours.ask(TTL, moment).number, moment, TTL, moment)
        assert len(ours._asked) <= 2  # the number, and the moment

    def test_a_delayed_one_does_not_cut_short_what_a_later_one_has_given(
        self, redis_server: RedisServer
    ) -> None:
        """Its sender had no reply and extended again; then the first request arrives."""
        redis_server.flush()
        with FaultProxy("127.0.0.1", redis_server.port) as proxy:
            url = f"redis://127.0.0.1:{proxy.port}/0"
            client = lockkit.connect(url, ttl=TTL, options={"socket_timeout": 2.0})
            lease = client.lock("stock:42").acquire()
            client._watchdog.unwatch(lease._hold)  # who is late to renew: the fault is for extend()
            fault = proxy.delay_requests(matching=b"EVALSHA")
            with pytest.raises(OutcomeUnknown):
                lease.extend(2.0)
            client._watchdog.unwatch(lease._hold)
            patient = Steps(lockkit.connect(redis_server.url).store)
            later = lease._hold.ask(60.0, now())
            assert patient.extend([later]) == [Renewal(60.0)]
            fault.release()
            assert fault.happened.wait(20)
            (info,) = patient.holders("stock:42")
            assert info.left is not None
            assert info.left > 30
            lease.release()
            client.close()
            patient.close()


@pytest.mark.parametrize("api", ["sync", "async"])
def test_a_refused_extension_is_not_asked_for_by_the_next_renewals(api: Api) -> None:
    """They would be refused as well, and with them those of all other leases."""
    settings = settings_from_url("memory://", ttl=3.0)
    client = client_of(api, load_store(settings), settings)
    extend = client.store.extend

    def limited(requests: Any) -> Step[list[Renewal]]:
        if any(request.ttl > 10 for request in requests):
            raise ConfigurationError("ttl must be at most 10 seconds")
        return (yield from extend(requests))

    client.store.extend = limited  # type: ignore[method-assign]

    def renewed() -> bool:
        leases = [client.lock(name).acquire() for name in ("a", "b")]
        with pytest.raises(ConfigurationError, match="at most 10"):
            leases[0].extend(20.0)
        renewals = [is_renewed(lease) for lease in leases]
        releases = [lease.release() for lease in leases]
        return all(renewals + releases)

    at_least_once(renewed)
    client.stop() if isinstance(client, BlockingClient) else client.close()


def is_renewed(lease: Any) -> bool:
    deadline = now() + lease.remaining()
    eventually(lambda: lease.lost or now() + lease.remaining() > deadline + 0.1)
    return not lease.lost


class TestAnExtensionToLess:
    def test_counts_also_when_its_reply_is_lost(self, client: lockkit.LockClient) -> None:
        """It may have been done: so the holder stops relying on it no later than the store."""
        lease = client.lock("stock:42").acquire()
        backend = client.store
        extend = backend.extend

        def dropped(requests: Any) -> Step[list[Renewal]]:
            yield from extend(requests)
            raise OutcomeUnknown("no reply")

        backend.extend = dropped  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknown):
            lease.extend(2.0)
        assert lease.remaining() <= 2.0
        backend.extend = extend  # type: ignore[method-assign]
        assert lease.release()

    def test_is_renewed_in_time(self, client: lockkit.LockClient) -> None:
        """The watchdog slept until a third of the old TTL."""
        watchdog = client._watchdog

        def renewed() -> bool:
            lease = client.lock("stock:42").acquire()
            eventually(lambda: watchdog._schedule._wake_at > now())  # it sleeps
            lease.extend(0.3)
            eventually(lambda: lease.lost or lease.remaining() > 1)
            return lease.release()

        at_least_once(renewed)


def test_a_lease_handed_to_a_waiter_lasts_its_ttl_whatever_max_hold_says() -> None:
    """A handoff is short, so that a dead waiter blocks nobody; its receiver makes it whole."""
    client = lockkit.connect("memory://", ttl=9, max_hold=0)
    with ThreadPoolExecutor() as pool:

        def made_whole() -> bool:
            first = client.lock("stock:42").acquire()
            waiting = pool.submit(client.lock("stock:42").acquire)
            queued(client, "stock:42", 1)
            first.release()
            second = waiting.result()
            eventually(lambda: second.lost or second.remaining() > 4)
            return second.release()

        at_least_once(made_whole)
    client.close()


def test_without_another_thread_there_is_no_lease_and_the_next_one_is_renewed(
    client: lockkit.LockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr("_thread.start_new_thread", refuse)
        with pytest.raises(BackendUnavailable, match="no thread can be started"):
            client.lock("stock:42").acquire()
    assert client.inspect("stock:42") is None

    def renewed() -> bool:
        lease, start = client.lock("stock:42", ttl=0.3).acquire(), now()
        eventually(lambda: lease.lost or now() > start + 0.5)
        return lease.release()

    at_least_once(renewed)


def test_a_lease_says_that_its_renewals_fail(
    client: lockkit.LockClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And so does the log, once."""
    tried = threading.Semaphore(0)

    def fail(_: object) -> None:
        tried.release()
        raise BackendUnavailable("it is down")

    leases = client.multi("a", "b").acquire()
    one = leases["a"]
    assert (one.state, leases.state, "held" in repr(one)) == (HELD, HELD, True)
    with monkeypatch.context() as patched:
        patched.setattr(client.store, "extend", fail)
        one._hold.due = now()
        client._watchdog._hurry()
        eventually(lambda: one.state is UNKNOWN)
        one._hold.due = now()
        client._watchdog._hurry()
        for _ in range(2):
            assert tried.acquire(timeout=20)
    said = "renewals fail, and are tried until the leases expire (1 leases): it is down"
    eventually(lambda: said in caplog.messages)
    assert caplog.messages.count(said) == 1
    assert (leases.state, "unknown" in repr(one), one.lost) == (UNKNOWN, True, False)
    one.check()
    one.extend()
    assert (one.state, leases.state) == (HELD, HELD)
    one.release()
    assert (one.state, leases.state, "released" in repr(one)) == (LOST, LOST, True)
    leases["b"].release()


def test_a_store_that_is_down_is_asked_once_before_the_next_renewals() -> None:
    """Each withdrawal takes a time-out then; renewals must not come after all of them."""
    store = load_store(settings_from_url("memory://"))
    asked: list[str] = []

    def release(request: Request) -> Step[Release]:
        asked.append(request.token)
        raise BackendUnavailable("it is down")

    store.release = release  # type: ignore[method-assign]
    watchdog = Watchdog(store, store.wire(), lambda: store, is_local=True)
    for token in "abc":
        watchdog._schedule.withdraw(request(token), now())
    watchdog.work()
    assert len(asked) == 1


def test_a_store_that_does_not_say_how_leases_ended_is_not_asked_of_each() -> None:
    """That takes a time-out each, and nothing is renewed meanwhile."""
    settings = settings_from_url("memory://", ttl=TTL)
    store = load_store(settings)
    asked: list[str] = []

    def ended(name: str, _: int | None) -> Step[None]:
        asked.append(name)
        raise BackendUnavailable("it is down")

    store.ended = ended  # type: ignore[method-assign, assignment]
    with lockkit.LockClient(store, settings) as client:
        leases = [client.lock(name).acquire() for name in "abc"]
        for lease in leases:
            client.perform(store.release(lease._hold.request))
        client.perform(renew(store, [lease._hold for lease in leases]))
        for lease in leases:
            with pytest.raises(lockkit.LeaseLost, match="its store does not have it any more"):
                lease.check()
            assert not lease.release()
        assert len(asked) == 1


@pytest.mark.parametrize("api", ["sync", "async"])
def test_what_a_defect_keeps_from_being_given_back_is_logged_once_and_in_the_way_of_nothing(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_from_url("memory://", ttl=TTL)
    store = load_store(settings)
    release, refusals = store.release, {"first": 1, "second": 4}

    def defective(request: Request) -> Step[Release]:
        refusals[request.name] -= 1
        if refusals[request.name] >= 0:
            raise BackendUnavailable("it is down")
        if request.name == "first":
            raise RuntimeError("the defect of the test")
        return (yield from release(request))

    store.release = defective  # type: ignore[method-assign]
    client = client_of(api, store, settings)
    for lease in [client.lock(name).acquire() for name in ("first", "second")]:
        with pytest.raises(BackendUnavailable):
            lease.release()
    eventually(lambda: client.inspect("second") is None)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "'first' is not given back" in caplog.text
    assert "the defect of the test" in caplog.text
    client.stop() if isinstance(client, BlockingClient) else client.close()


if sys.version_info >= (3, 12):

    async def _renewed_by_eager_tasks() -> bool:
        """A pass over a store in memory waits for nothing, so it is over before it is a task."""
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        async with lockkit.aio.connect("memory://", ttl=TTL) as client:
            lease = await client.lock("stock:42").acquire()
            for _ in range(2):
                before, lease._hold.due = lease._hold.deadline, now()
                client._watchdog._hurry()
                async with asyncio.timeout(30):
                    while lease._hold.deadline <= before:  # noqa: ASYNC110  it has no event
                        await asyncio.sleep(0.001)
            return await lease.release()

    def test_a_loop_with_eager_tasks_renews_again_and_again() -> None:
        assert asyncio.run(_renewed_by_eager_tasks())


async def test_leases_are_renewed_after_a_pass_that_somebody_cancelled() -> None:
    """As a program does that cancels all tasks of its loop, and goes on."""

    async def renewing() -> asyncio.Task[Any]:
        while True:
            for task in asyncio.all_tasks():
                if task.get_name() == "lockkit-watchdog":
                    return task
            await asyncio.sleep(0)

    async with lockkit.aio.connect("memory://", ttl=TTL) as locks, locks.lock("stock:42") as lease:
        lease._hold.due = now()
        locks._watchdog._hurry()
        cancelled = await renewing()
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert cancelled.cancelled()
        await asyncio.wait_for(renewing(), 10)


async def test_what_is_given_back_in_a_task_that_somebody_cancelled_is_given_back() -> None:
    settings = settings_from_url("memory://", ttl=600)
    store = load_store(settings)
    release, refused = store.release, []

    def down(request: Request) -> Step[Release]:
        if not refused:
            refused.append(request)
            raise BackendUnavailable("it is down")
        return (yield from release(request))

    store.release = down  # type: ignore[method-assign]
    async with lockkit.aio.AsyncLockClient(store, settings) as locks:
        lease = await locks.lock("stock:42").acquire()
        with pytest.raises(BackendUnavailable):
            await lease.release()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        async with asyncio.timeout(30):
            while await locks.inspect("stock:42"):  # noqa: ASYNC110  it has no event
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("api", ["sync", "async"])
def test_an_extended_lease_is_given_back_when_its_store_is_down_for_more_than_the_ttl(
    api: Api,
) -> None:
    settings = settings_from_url("memory://", ttl=2.0)
    store = load_store(settings)
    release, up_at = store.release, math.inf

    def down(request: Request) -> Step[Release]:
        if now() < up_at:
            raise BackendUnavailable("it is down")
        return (yield from release(request))

    store.release = down  # type: ignore[method-assign]
    client = client_of(api, store, settings)
    lease = client.lock("stock:42").acquire()
    lease.extend(3600)
    with pytest.raises(BackendUnavailable):
        lease.release()
    up_at = now() + 2.5
    eventually(lambda: client.inspect("stock:42") is None)
    client.stop() if isinstance(client, BlockingClient) else client.close()


@pytest.mark.parametrize("api", ["sync", "async"])
def test_an_extended_lease_is_asked_for_as_often_and_keeps_what_it_has(api: Api) -> None:
    """Its holder hears in time that it is lost."""
    settings = settings_from_url("memory://", ttl=3.0)
    client = client_of(api, load_store(settings), settings)
    kept, lost = client.lock("kept").acquire(), client.lock("lost").acquire()
    began = now()
    for lease in (kept, lost):
        lease.extend(3600)
    info = client.inspect("lost")
    assert info is not None
    assert client.break_("lost", fence=info.fence)
    eventually(lambda: lost.lost)
    assert not lost.release()
    assert kept.remaining() >= 3600 * 0.99 - 0.1 - (now() - began)
    found = client.inspect("kept")
    assert found is not None and found.left is not None
    assert found.left <= 3600
    assert kept.release()
    client.stop() if isinstance(client, BlockingClient) else client.close()


def test_an_extended_lease_is_asked_for_as_often_after_a_failure() -> None:
    """While the store was away, it may have given the name to somebody else."""
    held = hold()
    asked = held.ask(1000 * TTL, START)
    held.renewed(asked.number, START, 1000 * TTL, START)
    held.renewal_failed(START + TTL / 3, BackendUnavailable())
    assert held.due <= START + 2 * TTL / 3


def test_a_claim_whose_end_only_the_store_knows_is_asked_for_at_once_after_a_pause() -> None:
    """Of a session that was silent, say: its deadline is over, and it may be held."""
    schedule = Schedule()
    handed = Hold(Granted(request(), 1, START + TTL, START, whole=False))
    schedule.add(handed)
    late = START + 5 * TTL
    assert schedule.doubt(late)
    assert schedule.take_due(late) == ([handed], [], [])


def test_what_is_to_be_withdrawn_does_not_hold_up_renewals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands may be left after an outage, of a store that is slow by now."""
    with lockkit.connect("memory://", ttl=3) as locks:
        lease = locks.lock("stock:42").acquire()
        withdrawn: list[str] = []
        renewed: list[int] = []
        extend = locks.store.extend

        def extending(requests: Any) -> Any:
            renewed.append(len(withdrawn))
            return extend(requests)

        def withdraw(request: Request) -> Step[None]:
            time.sleep(0.05)
            withdrawn.append(request.token)
            yield from ()

        monkeypatch.setattr(locks.store, "withdraw", withdraw)
        monkeypatch.setattr(locks.store, "extend", extending)
        for number in range(80):
            locks._watchdog.withdraw_later(request(str(number)), 0.0)
        eventually(lambda: len(withdrawn) == 80)
        assert any(0 < number < 80 for number in renewed)
        lease.release()


@pytest.mark.parametrize("error", [StoreRefused("no"), DamagedRecord("cut"), LayoutMismatch("99")])
def test_what_is_refused_does_not_hold_up_what_is_to_be_withdrawn(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than one pass has time for is refused again and again; it stands behind the others."""
    with lockkit.connect("memory://") as locks:
        withdrawn = threading.Event()

        def withdraw(request: Request) -> Step[Release]:
            yield from ()
            if request.token == "last":
                withdrawn.set()
                return Release.RELEASED
            time.sleep(RETRY / 4)
            raise error

        monkeypatch.setattr(locks.store, "withdraw", withdraw)
        for token in (*map(str, range(8)), "last"):
            locks._watchdog.withdraw_later(request(token), START)
        assert withdrawn.wait(20)


@pytest.mark.parametrize("is_answered", [True, False])
def test_what_cannot_be_given_back_is_tried_until_the_last_extension_has_expired(
    is_answered: bool,
) -> None:
    """Also if its reply was lost, and whatever a later one asks for."""
    held, schedule = hold(), Schedule()
    asked = held.ask(20 * TTL, START)
    if is_answered:
        held.renewed(asked.number, START, 20 * TTL, START)
    held.ask(TTL / 10, START)
    schedule.withdraw(held.request, START, held.latest)
    assert schedule.take_due(START + 20 * TTL) == ([], [held.request], [])
    assert schedule.take_due(START + 21 * TTL) == ([], [], [])


def test_what_is_done_after_a_long_extension_counts_instead_of_it() -> None:
    held = hold()
    held.ask(20 * TTL, START)
    asked = held.ask(TTL, START)
    held.renewed(asked.number, START, TTL, START)
    assert START + TTL <= held.latest < START + 2 * TTL
