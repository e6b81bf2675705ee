"""``?protocol=plain``: keys that lockkit and other clients lock, and what other clients leave."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from command_line import Result
from command_line import locks as command
from django_redis.cache import RedisCache
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.crc import key_slot

import lockkit
from lockkit import aio
from lockkit.compat.redis import Lock
from lockkit.model.errors import (
    AcquireTimeout,
    BackendError,
    ConfigurationError,
    DamagedRecord,
    LeaseLost,
    StoreRefused,
    UnsupportedCapability,
)
from lockkit.model.settings import read_settings, settings_from_url
from lockkit.model.types import LockState, Request
from lockkit.operate.inspect import stuck
from lockkit.stores.redis.plain import listing
from lockkit.stores.redis.plain.keys import PlainKeys
from lockkit.testing.agent import Agent
from lockkit.testing.blocking import Api, BlockingClient, connect
from lockkit.testing.conformance.base import PROMPT, SOON, TTL, at_least_once, eventually
from lockkit.testing.targets import Target

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "django_project.settings")

NAME = "stock:42"
EXTENDED = 20

KEPT = 600_000
"""Milliseconds."""

WITHOUT_TTL = -1


@pytest.fixture
def url(redis_url: str) -> str:
    return f"{redis_url}?protocol=plain"


@pytest.fixture
def locks(url: str) -> Iterator[lockkit.LockClient]:
    with lockkit.connect(url, ttl=30) as client:
        yield client


@pytest.fixture
def other(redis_url: str) -> Iterator[redis.Redis]:
    """A client that knows nothing of lockkit."""
    with redis.Redis.from_url(redis_url, socket_timeout=10) as client:
        yield client


def test_a_lock_is_a_key_with_its_token_and_a_ttl(
    locks: lockkit.LockClient, other: redis.Redis
) -> None:
    with locks.lock(NAME).acquire() as lease:
        assert other.get(NAME) == lease.token.encode()
        assert 20_000 < other.pttl(NAME) <= 30_000
        assert not other.set(NAME, "mine", nx=True, px=1000)
    assert other.get(NAME) is None


def test_a_prefix_stands_before_the_name(url: str, other: redis.Redis) -> None:
    with lockkit.connect(url, key_prefix=":1:") as client, client.lock(NAME):
        assert other.exists(f":1:{NAME}")


def test_nothing_lies_beside_a_key_for_ever(locks: lockkit.LockClient, other: redis.Redis) -> None:
    with locks.lock(NAME).acquire(), pytest.raises(AcquireTimeout):
        locks.lock(NAME).acquire(timeout=0.05)
    request = locks.lock("withdrawn")._request(locks, 0)
    locks.perform(locks.store.release(request._replace(queued=True, unsure=True)))
    other.set("theirs", "x")
    with pytest.raises(AcquireTimeout):
        locks.lock("theirs").acquire(timeout=0.05)
    left = [key for key in other.scan_iter() if key != b"theirs"]
    assert left
    assert all(0 < other.pttl(key) <= KEPT for key in left)


@pytest.mark.parametrize("ended_by", ["somebody", "an operator"])
def test_nor_beside_one_without_a_ttl(
    locks: lockkit.LockClient, other: redis.Redis, ended_by: str
) -> None:
    """Its holder has died, and does not release it. If others delete it, lockkit hears of that only
    when somebody locks the name again."""
    assert other.lock(NAME, lock_class=Lock).acquire()
    assert other.pttl(NAME) == WITHOUT_TTL
    if ended_by == "somebody":
        other.delete(NAME)
        assert locks.lock(NAME).acquire().release()
    else:
        assert locks.repair(NAME)
    assert all(0 < other.pttl(key) <= 30_000 + KEPT for key in other.scan_iter())


@pytest.mark.parametrize("holder", ["lockkit", "redis-py", "django-redis"])
@pytest.mark.parametrize("asker", ["lockkit", "redis-py", "django-redis"])
def test_they_exclude_one_another(
    url: str, other: redis.Redis, redis_url: str, holder: str, asker: str
) -> None:
    cache = RedisCache(redis_url, {})
    with lockkit.connect(url, key_prefix=":1:", ttl=30) as client:

        def lock(kind: str) -> Any:
            """Acquires at once, or says False; returns what releases it."""
            if kind == "lockkit":
                return (lease := client.lock(NAME).try_acquire()) and lease.release
            theirs = cache.lock(NAME, timeout=30) if kind == "django-redis" else None
            theirs = theirs or other.lock(f":1:{NAME}", timeout=30)
            return theirs.acquire(blocking=False) and theirs.release

        release = lock(holder)
        assert not lock(asker)
        release()
        release = lock(asker)
        assert not lock(holder)
        release()
    cache.client.get_client().connection_pool.disconnect()


def _is_passed_on_promptly(theirs: Any, waiting: Callable[[], lockkit.Lease]) -> bool:
    released = time.monotonic()
    theirs.release()
    waiting().release()
    return time.monotonic() - released < PROMPT / 2


def test_a_waiter_notices_soon_that_another_client_releases(
    locks: lockkit.LockClient, other: redis.Redis
) -> None:
    def promptly() -> bool:
        theirs = other.lock(NAME, timeout=60)
        assert theirs.acquire()
        waiting = _in_thread(lambda: locks.lock(NAME, timeout=SOON).acquire())
        eventually(lambda: _waiters(locks) == 1)
        return _is_passed_on_promptly(theirs, waiting)

    at_least_once(promptly)


def test_the_dead_before_a_waiter_are_forgotten_while_another_client_holds_it(
    locks: lockkit.LockClient, other: redis.Redis, url: str
) -> None:
    """Its release runs no script that passes them: only the first in the queue asks often."""

    def promptly() -> bool:
        theirs = other.lock(NAME, timeout=60)
        assert theirs.acquire()
        with Agent(Target(url)) as first:
            first.send("acquire", handle="a", api="sync", name=NAME, timeout=60, ttl=30)
            eventually(lambda: _waiters(locks) == 1)
            waiting = _in_thread(lambda: locks.lock(NAME, timeout=3 * SOON).acquire())
            eventually(lambda: _waiters(locks) == 2)
            first.kill()
        eventually(lambda: _waiters(locks) == 1)
        return _is_passed_on_promptly(theirs, waiting)

    at_least_once(promptly)


def test_those_who_wait_for_another_client_are_served_in_their_order(
    locks: lockkit.LockClient, other: redis.Redis
) -> None:
    def in_order() -> bool:
        order: list[int] = []
        theirs = other.lock(NAME, timeout=60)
        assert theirs.acquire()
        waiting = []
        for number in range(5):
            waiting.append(_in_thread(lambda n=number: _visit(locks, order, n)))
            eventually(lambda n=number: _waiters(locks) == n + 1)
        theirs.release()
        for each in waiting:
            each()
        return order == list(range(5))

    at_least_once(in_order)


def test_while_holders_hand_it_on_no_other_client_comes_in_between(
    locks: lockkit.LockClient, other: redis.Redis
) -> None:
    def nobody() -> bool:
        lease = locks.lock(NAME).acquire()
        waiting = [_in_thread(lambda: _visit(locks, [], 0)) for _ in range(10)]
        eventually(lambda: _waiters(locks) == 10)
        assert lease.release()
        while locks.inspect(NAME) is not None:
            if other.set(NAME, "theirs", nx=True, px=10):
                break
        came_last = _waiters(locks) == 0
        for each in waiting:
            each()
        return came_last

    at_least_once(nobody)


def test_those_who_wait_hear_that_another_client_has_released_it(
    locks: lockkit.LockClient, other: redis.Redis
) -> None:
    def soon() -> bool:
        lease = locks.lock(NAME, ttl=300).acquire()
        waiting = _in_thread(lambda: locks.lock(NAME, timeout=SOON).acquire())
        eventually(lambda: _waiters(locks) == 1)
        started = time.monotonic()
        other.delete(NAME)
        waiting().release()
        lease.release()
        return time.monotonic() - started < 1.5 + PROMPT

    at_least_once(soon)


def test_a_holder_hears_that_another_client_has_released_its_lock(
    locks: lockkit.LockClient, other: redis.Redis
) -> None:
    """At its next renewal. A waiter has the lock soon as well."""

    def hears() -> bool:
        lease = locks.lock(NAME, ttl=3 * TTL).acquire()
        other.delete(NAME)
        eventually(lambda: lease.lost)
        end = time.monotonic() + SOON / 2
        eventually(lambda: "somebody else" in _why(lease) or time.monotonic() > end)
        why = _why(lease)
        assert lease.release() is False
        return "somebody else released it" in why  # and not a stall of the machine

    at_least_once(hears)


def test_a_key_that_another_client_has_taken_is_not_ours_any_more(
    locks: lockkit.LockClient, other: redis.Redis
) -> None:
    lease = locks.lock(NAME).acquire()
    other.set(NAME, "theirs", px=60_000)
    assert locks.lock(NAME).try_acquire() is None
    info = locks.inspect(NAME)
    assert info is not None
    assert (info.state, info.owner, info.fence) == (LockState.HELD, None, None)
    with pytest.raises(LeaseLost):
        lease.extend()
    assert lease.release() is False
    assert other.get(NAME) == b"theirs"


def test_a_deleted_key_is_shown_as_abandoned(locks: lockkit.LockClient, other: redis.Redis) -> None:
    lease = locks.lock(NAME).acquire()
    other.delete(NAME)
    info = locks.inspect(NAME)
    assert info is not None
    assert (info.state, info.fence) == (LockState.ABANDONED, lease.fencing_token)
    assert lease.release() is False
    assert locks.inspect(NAME) is None


def test_what_an_operator_has_broken_is_said_to_its_holder(locks: lockkit.LockClient) -> None:
    lease = locks.lock(NAME).acquire()
    assert locks.break_(NAME, fence=lease.fencing_token, by="ann: it hangs")
    with pytest.raises(LeaseLost, match="an operator released it: ann: it hangs"):
        lease.extend()
    assert lease.release() is False


@pytest.mark.parametrize("when", ["9" * 400, "-" + "9" * 400, "1", "x", ""], ids=lambda w: w[:2])
@pytest.mark.parametrize("field", ["w", "W"])
def test_old_words_of_an_operator_and_strange_ones_are_not_shown(
    locks: lockkit.LockClient, other: redis.Redis, field: str, when: str
) -> None:
    lease = locks.lock(NAME).acquire()
    other.hset(PlainKeys("").of_name(NAME)[0], field, f"{lease.fencing_token} {when} ann")
    assert list(locks.last_words(NAME)) == []
    other.delete(NAME)
    with pytest.raises(lockkit.LeaseLost):
        lease.extend()
    lease.release()


def test_a_key_without_a_ttl_is_listed_as_stuck_and_repaired_on_request(
    url: str, other: redis.Redis
) -> None:
    """SETNX + EXPIRE leaves one if it dies between the two."""
    with lockkit.connect(url, key_prefix="shop:", ttl=30) as client:
        other.setnx(f"shop:{NAME}", "1")
        other.set("session:7", "not a lock, and has no TTL either")
        (info,) = client.holders()
        assert (info.name, info.state, info.left) == (NAME, LockState.HELD, None)
        found = stuck(info)
        assert found is not None
        assert (found.code, found.reason) == ("no-ttl", "no TTL")
        with pytest.raises(AcquireTimeout):
            client.lock(NAME).acquire(timeout=0.1)
        assert other.pttl(f"shop:{NAME}") == -1
        assert client.repair(NAME) is True
        assert 20_000 < other.pttl(f"shop:{NAME}") <= 30_000
        assert client.repair(NAME) is False
        (info,) = client.holders()
        assert stuck(info) is None


def test_what_is_repaired_is_what_was_shown(locks: lockkit.LockClient, other: redis.Redis) -> None:
    """The name may go to somebody else while the operator reads."""
    other.set(NAME, "left behind")
    left_behind = locks.inspect(NAME)
    other.set(NAME, "held by another client that wants no TTL")
    assert locks.repair(NAME, shown=left_behind) is False
    assert other.pttl(NAME) == -1
    other.set(PlainKeys("").of_name(NAME)[0], "x")
    damaged = locks.inspect(NAME)
    assert damaged is not None
    assert damaged.state is LockState.DAMAGED
    assert locks.repair(NAME, shown=damaged) is True
    assert other.pttl(NAME) == -1
    assert locks.repair(NAME, shown=locks.inspect(NAME)) is True
    assert other.pttl(NAME) > 0


def test_the_command_shows_and_repairs_it(url: str, other: redis.Redis) -> None:
    other.setnx("shop:stock:42", "1")

    with lockkit.connect(url, key_prefix="shop:", ttl=30) as client:

        def locks(*arguments: str) -> Result:
            return command(client, *arguments)

        listed = locks("--stuck")
        assert "stock:42" in listed.out
        assert "no TTL" in listed.out
        refused = locks("release", "stock:42", "--yes")
        assert "has no TTL; --missing-ttl gives it one" in refused.err
        assert locks("release", "stock:42", "--missing-ttl", "--dry-run").status == 0
        assert locks("release", "stock:42", "--missing-ttl", "--fence", "7", "--yes").status == 2
        assert other.pttl("shop:stock:42") == -1
        repaired = locks("release", "stock:42", "--missing-ttl", "--yes", "--reason", "ticket 7")
        assert "it has the TTL" in repaired.out
        shown = locks("show", "stock:42").out
        assert re.search(r"an operator repaired its record \ds ago: .*: ticket 7", shown)
        assert other.pttl("shop:stock:42") > 0
        again = locks("release", "stock:42", "--missing-ttl", "--yes")
        assert "has a TTL, or nobody holds it" in again.err


@pytest.mark.parametrize("where", ["url", "options"])
def test_a_claim_repairs_it_where_that_is_asked_for(
    url: str, other: redis.Redis, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    other.setnx(NAME, "1")
    asked = f"{url}&repair_missing_ttl=true" if where == "url" else url
    options = {} if where == "url" else {"repair_missing_ttl": True}
    with lockkit.connect(asked, ttl=TTL, options=options) as client:
        with caplog.at_level(logging.WARNING, "lockkit"):
            lease = client.lock(NAME, timeout=SOON).acquire()
        assert lease.release()
    assert f"{NAME!r} had no TTL" in caplog.text


@pytest.mark.parametrize("wrong", ["maybe", "", "2"])
def test_what_is_not_true_or_false_is_refused(url: str, wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=r"repair_missing_ttl.*must be true or false"):
        lockkit.connect(f"{url}&repair_missing_ttl={wrong}")
    with pytest.raises(ConfigurationError, match=f"repair_missing_ttl.*{wrong!r}"):
        lockkit.connect(url, options={"repair_missing_ttl": wrong})


@pytest.mark.parametrize("protocol", ["plane", "4", ""])
def test_an_unknown_protocol_is_refused(redis_url: str, protocol: str) -> None:
    with pytest.raises(ConfigurationError, match="'plain'"):
        lockkit.connect(f"{redis_url}?protocol={protocol}")


@pytest.mark.parametrize(
    "url", ["memory://shop", "redis+cluster://h", "redlock://a,b,c", "sqlite:////tmp/x"]
)
def test_where_there_are_no_plain_keys_they_are_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="protocol=plain is for redis://"):
        lockkit.connect(f"{url}?protocol=plain")


def test_only_a_listing_looks_through_the_server(
    locks: lockkit.LockClient, other: redis.Redis
) -> None:
    other.config_resetstat()
    other.setnx("theirs", "1")
    with locks.lock(NAME).acquire() as lease:
        with pytest.raises(AcquireTimeout):
            locks.lock("theirs").acquire(timeout=0.1)
        lease.extend()
    assert locks.inspect("theirs") is not None
    assert "cmdstat_scan" not in other.info("commandstats")


def test_a_listing_without_a_prefix_shows_the_names_that_lockkit_has_used(
    locks: lockkit.LockClient, other: redis.Redis
) -> None:
    """Other keys may be anything."""
    other.set("a-page", "<html>")
    with locks.lock(NAME):
        assert [info.name for info in locks.holders()] == [NAME]


def test_a_listing_has_an_end(
    url: str, other: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "SCANNED_MOST", 2 * listing.PAGE)
    other.mset({f"shop:{number}": "1" for number in range(4 * listing.PAGE)})
    with lockkit.connect(url, key_prefix="shop:") as client:
        with pytest.raises(StoreRefused, match="keys, and a listing looks at no more"):
            list(client.holders())
        assert client.inspect("7") is not None


def test_a_key_of_another_type_is_somebody_elses(
    locks: lockkit.LockClient, other: redis.Redis
) -> None:
    other.lpush(NAME, "1")
    with pytest.raises(DamagedRecord):
        locks.lock(NAME).acquire()
    info = locks.inspect(NAME)
    assert info is not None
    assert info.state is LockState.DAMAGED
    assert "belongs to another program: lock another name" in info.damage
    assert locks.repair(NAME) is False
    assert other.llen(NAME) == 1


@pytest.mark.parametrize("api", ["sync", "async"])
def test_a_key_of_another_type_has_no_other_lease_extended_twice(
    api: Api, url: str, other: redis.Redis
) -> None:
    client = connect(api, url, ttl=600)
    leases = [client.lock(f"stock:{number}").acquire() for number in range(EXTENDED)]
    requests = [
        Request(lease.name, lease.token, ttl=900.0, owner="", number=1 << 40) for lease in leases
    ]
    leases[0].extend()  # from now on the server has the script
    other.delete("stock:0")
    other.lpush("stock:0", "1")
    before = _scripts(other)
    damaged, *kept = client.perform(client.store.extend(requests))
    assert isinstance(damaged.error, DamagedRecord)
    assert {renewal.left for renewal in kept} == {900.0}
    assert _scripts(other) - before == EXTENDED
    other.delete("stock:0")
    assert [lease.release() for lease in leases] == [False] + [True] * (EXTENDED - 1)
    client.stop() if isinstance(client, BlockingClient) else client.close()


def _scripts(server: redis.Redis) -> int:
    """How many have run."""
    return int(server.info("commandstats")["cmdstat_evalsha"]["calls"])


def test_what_lies_beside_a_key_may_be_damaged(
    locks: lockkit.LockClient, other: redis.Redis
) -> None:
    state, queue, *_ = PlainKeys("").of_name(NAME)
    for key, damage in ((state, "its record"), (queue, "its queue")):
        other.set(key, "x")
        with pytest.raises(DamagedRecord):
            locks.lock(NAME).acquire()
        info = locks.inspect(NAME)
        assert info is not None
        assert info.damage.startswith(damage)
        assert locks.repair(NAME) is True
        with locks.lock(NAME):
            pass


async def test_a_task_repairs_it_as_well(url: str, other: redis.Redis) -> None:
    other.set(PlainKeys("").of_name(NAME)[0], "x")
    async with aio.connect(url) as locks:
        with pytest.raises(DamagedRecord):
            await locks.lock(NAME).acquire()
        assert await locks.repair(NAME) is True
        assert await locks.repair(NAME) is False
        async with locks.lock(NAME):
            pass


def test_a_lease_outlives_what_is_remembered_beside_its_key(
    locks: lockkit.LockClient, other: redis.Redis
) -> None:
    """The key decides. An evicting server, or a person, may take away the rest."""
    lease = locks.lock(NAME).acquire()
    for key in other.scan_iter("*:lockkit:*"):
        other.delete(key)
    lease.extend()
    assert locks.lock(NAME).try_acquire() is None
    assert lease.release() is True


def test_full_memory_refuses_new_locks_and_lets_go_of_old_ones(
    locks: lockkit.LockClient, other: redis.Redis
) -> None:
    lease = locks.lock(NAME).acquire()
    waiting = _in_thread(lambda: locks.lock(NAME, timeout=SOON).acquire())
    eventually(lambda: _waiters(locks) == 1)
    other.config_set("maxmemory", "1mb")
    try:
        with pytest.raises(BackendError, match="memory"):
            locks.lock("another").acquire()
        before = _scripts_run(other)
        eventually(lambda: _scripts_run(other) >= before + 2)  # by the waiter, which asks again
        lease.extend(40)
        assert lease.release()
        second = waiting()
        second.extend()
        assert locks.break_(NAME, fence=second.fencing_token)
    finally:
        other.config_set("maxmemory", "0")
    assert second.release() is False
    assert other.get(NAME) is None


def test_what_it_cannot_do_is_refused(locks: lockkit.LockClient) -> None:
    told = r"there are no semaphores and .*; .* redis:// without protocol=plain"
    with pytest.raises(UnsupportedCapability, match=told):
        locks.semaphore(NAME, 3)
    with pytest.raises(UnsupportedCapability):
        locks.rwlock(NAME)
    assert locks.store.records() is None
    with locks.lock(NAME, reentrant=True) as outer, locks.lock(NAME, reentrant=True) as inner:
        assert inner.fencing_token == outer.fencing_token


def test_the_command_says_that_keys_are_plain(locks: lockkit.LockClient) -> None:
    assert "plain keys), key prefix ''" in command(locks).err


def test_the_default_prefix_is_that_of_the_store_that_is_used() -> None:
    plain, ours = "redis://localhost/0?db=1&protocol=plain", "redis://localhost/0"
    assert settings_from_url(plain).key_prefix == ""
    assert settings_from_url(ours).key_prefix == "lockkit"
    for mapping, location, prefix in (
        (None, plain, ""),
        ({"default": plain}, ours, "lockkit"),
        ({"default": {"LOCATION": ours, "KEY_PREFIX": "shop"}}, plain, "shop"),
        ({"default": {"LOCATION": plain, "KEY_PREFIX": ""}}, ours, "lockkit"),
    ):
        found = read_settings(mapping, default_location=ours, environ={"LOCKKIT_URL": location})
        assert found["default"].key_prefix == prefix


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=("Cs",)) | st.sampled_from("{}"), min_size=1))
def test_all_keys_of_a_name_are_in_one_slot(name: str) -> None:
    assert len({key_slot(key) for key in PlainKeys("").of_name(name)}) == 1


@settings(deadline=None)
@given(
    st.lists(st.text(st.sampled_from("{}:ab"), min_size=1, max_size=8), max_size=20, unique=True)
)
def test_no_two_names_share_a_key(names: list[str]) -> None:
    keys = PlainKeys("")
    found = [key for name in names for key in keys.of_name(name)]
    assert len(set(found)) == len(found)
    for name in names:
        assert keys.name(keys.key_beside(keys.of_name(name)[0])) == name


def test_a_late_acquire_after_its_withdraw_gets_nothing(
    locks: lockkit.LockClient, other: redis.Redis
) -> None:
    """A plain SET NX PX that comes late has the name for its TTL: a tombstone stops ours."""
    request = locks.lock(NAME)._request(locks, 0)
    locks.perform(locks.store.release(request._replace(queued=True, unsure=True)))
    locks.perform(locks.store.acquire(request))
    assert other.get(NAME) is None


def _scripts_run(other: redis.Redis) -> int:
    stats: Any = other.info("commandstats")
    return int(stats["cmdstat_evalsha"]["calls"])


def _waiters(client: lockkit.LockClient) -> int:
    info = client.inspect(NAME)
    return info.waiters if info else 0


def _why(lease: lockkit.Lease) -> str:
    with pytest.raises(LeaseLost) as caught:
        lease.check()
    return str(caught.value)


def _visit(client: lockkit.LockClient, order: list[int], number: int) -> None:
    with client.lock(NAME, timeout=SOON):
        order.append(number)


def _in_thread(work: Callable[[], Any]) -> Callable[[], Any]:
    """Returns what waits for it and gives its result."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()

    def result() -> Any:
        thread.join(2 * SOON)
        assert not thread.is_alive(), f"it has not ended within {2 * SOON:g} s"
        return found[0]

    return result
