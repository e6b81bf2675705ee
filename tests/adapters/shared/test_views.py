"""The rules of lock_view that every framework shares."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from interrupting import Interrupting

import lockkit
from lockkit.aio import connect as connect_async
from lockkit.leases.lease import result_of
from lockkit.model.errors import ConfigurationError, LockHeld, TooManyWaiters
from lockkit.model.types import Owner
from lockkit.web.name_fields import AnonymousUser, FieldError
from lockkit.web.refusal import prefers_html, refusal_of, request_label
from lockkit.web.view_lock import ViewLock, ViewSettings, read_view_settings, waiting_room
from lockkit.web.waiting_room import WaitingRoom


@pytest.fixture
def client() -> Iterator[lockkit.LockClient]:
    made = lockkit.connect("memory://")
    yield made
    made.close()


def test_settings_by_default_and_given() -> None:
    assert read_view_settings(None) == ViewSettings(2.0, 423, 8)
    given = read_view_settings({"TIMEOUT": 0, "BUSY_STATUS": 409, "MAX_WAITERS": None})
    assert given == ViewSettings(0.0, 409, None)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"TIMOUT": 1}, "did you mean 'TIMEOUT'"),
        ({"TIMEOUT": -1}, r"LOCKKIT_VIEWS\['TIMEOUT'\] is -1"),
        ({"TIMEOUT": "2"}, "TIMEOUT"),
        ({"BUSY_STATUS": 200}, "error status"),
        ({"BUSY_STATUS": True}, "error status"),
        ({"MAX_WAITERS": 1.5}, "whole number"),
        ([], "must be a mapping"),
    ],
)
def test_wrong_settings_name_the_key_and_the_remedy(mapping: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_view_settings(mapping)  # type: ignore[arg-type]


@pytest.mark.parametrize("arguments", [{"timeout": -1}, {"ttl": 0}, {"ttl": None}])
def test_wrong_arguments_are_found_at_import(arguments: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        ViewLock("a", **arguments)  # type: ignore[arg-type]


def test_a_full_waiting_room_refuses_what_is_busy_at_once(client: lockkit.LockClient) -> None:
    settings = ViewSettings(timeout=None, max_waiters=1)
    view_lock = ViewLock("a")
    holder = client.lock("a").acquire()
    waiter = threading.Thread(
        target=lambda: result_of(view_lock.acquire(client, "a", settings, "first")).release()
    )
    waiter.start()
    _until_somebody_waits(client)
    with pytest.raises(TooManyWaiters) as caught:
        result_of(view_lock.acquire(client, "a", settings, "second"))
    assert caught.value.holder is not None
    free = view_lock.acquire(client, "free", settings, "third")
    result_of(free).release()  # nobody need wait for this one
    holder.release()
    waiter.join()
    assert_all_have_left()


def assert_all_have_left() -> None:
    with waiting_room.place(1) as placed:
        assert placed


def _until_somebody_waits(client: lockkit.LockClient) -> None:
    """The store says so: no time is guessed."""
    while (info := client.inspect("a")) is None or info.waiters == 0:
        threading.Event().wait(0.001)


async def test_the_same_for_coroutines() -> None:
    client = connect_async("memory://")
    settings = ViewSettings(timeout=None, max_waiters=1)
    view_lock = ViewLock("a")
    holder = await client.lock("a").acquire()
    waiter = asyncio.create_task(view_lock.acquire(client, "a", settings, "first"))
    while (info := await client.inspect("a")) is None or info.waiters == 0:  # noqa: ASYNC110
        await asyncio.sleep(0)
    with pytest.raises(TooManyWaiters):
        await view_lock.acquire(client, "a", settings, "second")
    await holder.release()
    await (await waiter).release()
    await client.close()
    assert_all_have_left()


def test_who_does_not_wait_needs_no_place(client: lockkit.LockClient) -> None:
    with client.lock("a"), pytest.raises(LockHeld) as caught:
        result_of(ViewLock("a", timeout=0).acquire(client, "a", ViewSettings(max_waiters=0), ""))
    assert not isinstance(caught.value, TooManyWaiters)


def test_a_forked_child_begins_with_an_empty_waiting_room() -> None:
    """A place that was taken before the fork is not one of the child's, also when it is left."""
    room = WaitingRoom()
    with room.place(1) as placed:
        assert placed
        child = os.fork()
        inside = child == 0 and has_room_for_one(room)
    if child == 0:  # pragma: no cover  (another process)
        os._exit(0 if inside and has_room_for_one(room) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert has_room_for_one(room)


def test_a_place_that_nobody_has_any_more_is_free() -> None:
    """An interrupt may come when it is taken and before the block has begun."""
    room = WaitingRoom()
    place = room.place(1)
    assert place.__enter__()
    assert not has_room_for_one(room)
    del place
    assert has_room_for_one(room)


def test_a_signal_handler_may_take_a_place_while_one_is_taken() -> None:
    """It runs in the thread that takes one, wherever that is."""
    room = WaitingRoom()

    def take(at: int) -> str:
        with Interrupting(at, "waiting_room.py", lambda: has_room_for_one(room)) as interrupting:
            assert has_room_for_one(room)
        return interrupting.where

    places = [*itertools.takewhile(bool, map(take, itertools.count(1)))]
    assert any("__enter__" in place for place in places)
    assert has_room_for_one(room)


def has_room_for_one(room: WaitingRoom) -> bool:
    with room.place(1) as first, room.place(1) as second:
        return first and not second


HOLDER = Owner("web-1", 4121, "MainThread", "POST /secret")


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (lockkit.LockHeld("held", name="a", holder=HOLDER, retry_after=3), 423, 3),
        (lockkit.AcquireTimeout("held", name="a", holder=HOLDER, retry_after=2), 423, 2),
        (lockkit.TooManyWaiters("full", name="a", holder=HOLDER), 503, 1),
        (lockkit.BackendUnavailable("redis://:pw@h", name="a"), 503, 5),
        (lockkit.OutcomeUnknown("redis://:pw@h", name="a"), 503, 5),
        (lockkit.LeaseLost("lost", name="a"), 503, 1),
        (AnonymousUser("{user.pk} needs …"), 403, None),
        (FieldError("{json.a} is missing"), 400, None),
    ],
)
def test_refusals(error: lockkit.LockError, status: int, retry_after: int | None) -> None:
    refusal = refusal_of(error)
    assert (refusal.status, refusal.retry_after) == (status, retry_after)
    assert refusal.headers().get("Retry-After") == (
        None if retry_after is None else str(retry_after)
    )
    assert refusal.headers()["Cache-Control"] == "no-store"
    members = refusal.problem()
    assert members.pop("reason", None) == ("{json.a} is missing" if status == 400 else None)
    assert set(members) == {"type", "title", "status", "detail", "code"}
    shown = f"{members} {refusal.headers()}"
    secrets = ("web-1", "4121", "/secret", "pw", "stock", "json.a")
    assert not any(secret in shown for secret in secrets)


def test_a_defect_has_no_refusal_and_the_busy_status_can_be_chosen() -> None:
    with pytest.raises(ConfigurationError, match="wrong"):
        refusal_of(ConfigurationError("wrong"))
    assert refusal_of(lockkit.LockHeld("held"), 409).status == 409


@pytest.mark.parametrize(
    ("accept", "html"),
    [
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", True),
        ("application/xhtml+xml", True),
        ("", False),
        ("*/*", False),
        ("application/json, text/plain, */*", False),
        ("application/json, text/html;q=0.5", False),
        ("text/html, application/json;q=0.5", True),
        ("text/html;q=0", False),
        ("text/html;q=nan, text/plain", False),
        ("text/html;q=,,;;=", False),
        ("TEXT/HTML", True),
    ],
)
def test_who_gets_html(accept: str, html: bool) -> None:
    assert prefers_html(accept) is html


@pytest.mark.parametrize(
    ("method", "path", "label"),
    [
        ("POST", "/stock/42", "POST /stock/42"),
        ("GET", "/a b/é\r\n\x1b[2J", "GET /a%20b/%C3%A9%0D%0A%1B%5B2J"),
        ("P\nX", "/\ud800", "P%0AX /%3F"),
        ("GET", "/" + "x" * 500, "GET /" + "x" * 195),
    ],
)
def test_labels_are_escaped_and_short(method: str, path: str, label: str) -> None:
    assert request_label(SimpleNamespace(method=method, path=path)) == label
