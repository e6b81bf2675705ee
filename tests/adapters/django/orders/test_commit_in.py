"""Views that commit themselves: ``@idempotent(atomic=False)`` and ``request.order.commit_in``."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections
from django.http import HttpResponse
from django.test import Client, override_settings
from django_project.shop.models import Sale
from orders_django import claiming, views

from lockkit.model.errors import LeaseLost
from lockkit.orders import rows
from lockkit_django import locks
from lockkit_django.models import OrderRecord
from lockkit_django.orders import OpenOrder

pytestmark = pytest.mark.django_db(transaction=True)

REPLAYED = "Idempotent-Replayed"


@pytest.fixture(autouse=True, params=[False, True], ids=["autocommit", "atomic-requests"])
def project(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", request.param)
    with override_settings(ROOT_URLCONF="orders_django.committing"):
        yield bool(request.param)


def buy(kind: str) -> Any:
    headers = {"Idempotency-Key": "A-1", "Authorization": "Token a"}
    client = Client(raise_request_exception=False)
    return client.post(f"/orders/{kind}", "{}", content_type="application/json", headers=headers)


def state() -> tuple[int, list[str]]:
    return Sale.objects.count(), list(OrderRecord.objects.values_list("state", flat=True))


@pytest.mark.parametrize(
    "kind", ["plain", "responds", "locked", "template", "method", "api", "mixed", "coroutine"]
)
def test_a_duplicate_gets_the_same_bytes(kind: str, project: bool) -> None:
    if project and kind == "coroutine":
        return  # Django has no ATOMIC_REQUESTS for async views
    first, second = buy(kind), buy(kind)
    assert (first.status_code // 100, REPLAYED in first) == (2, False)
    assert second[REPLAYED] == "true"
    assert (second.status_code, second.content) == (first.status_code, first.content)
    assert (state(), views.calls) == ((1, ["done"]), [kind])
    assert not list(locks["default"].holders())


def test_what_responds_with_is_given_is_the_answer() -> None:
    assert buy("responds").content.startswith(b"sold")
    answers = [buy("responds-then-fails") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].content == answers[1].content
    assert views.calls == ["responds", "responds-then-fails"]


def test_a_block_that_is_rolled_back_leaves_nothing() -> None:
    for _ in range(2):
        assert buy("fails-inside").status_code == 500
    assert (state(), views.calls) == ((0, []), ["fails-inside"] * 2)


def test_a_view_that_fails_after_its_commit_does_not_run_again() -> None:
    assert buy("fails-after").status_code == 500
    again = buy("fails-after")
    assert (again.status_code, again.json()["code"]) == (409, "order-completed")
    assert (state(), views.calls) == ((1, ["tombstone"]), ["fails-after"])


def test_a_view_may_try_its_block_again() -> None:
    assert [buy("tries-again").status_code for _ in range(2)] == [201, 201]
    assert (state(), views.calls) == ((1, ["done"]), ["tries-again"] * 2)


@pytest.mark.parametrize("kind", ["twice", "not-durable", "elsewhere", "in-ours"])
def test_a_wrong_use_is_an_error_and_saves_no_more(kind: str) -> None:
    saved = 1 if kind == "twice" else 0
    assert buy(kind).status_code == 500
    assert Sale.objects.count() == saved
    assert not list(locks["default"].holders())


@pytest.mark.parametrize("kind", ["atomic", "never-atomic"])
def test_no_transaction_is_around_an_order(kind: str, project: bool) -> None:
    """Another request has that of ATOMIC_REQUESTS, unless its view is exempt."""
    assert buy(kind).content == b"False"
    others = [Client().get(f"/orders/{kind}"), Client().post(f"/orders/{kind}")]
    expected = project and kind == "atomic"
    assert [answer.content.decode() for answer in others] == [str(expected)] * 2


@pytest.mark.parametrize("kind", ["swallows", "swallows-in-bulk", "swallows-after-a-part"])
def test_a_database_error_that_is_swallowed_is_not_a_success(kind: str) -> None:
    response = buy(kind)
    assert (response.status_code, response.json()["code"]) == (503, "order-not-saved")
    assert state() == (0, [])


@pytest.mark.parametrize("kind", ["rolls-back", "catches"])
def test_a_success_after_the_block_was_rolled_back_is_not_kept(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The view wanted that. So the next try runs it again."""
    with caplog.at_level(logging.WARNING, "lockkit"):
        answers = [buy(kind) for _ in range(2)]
    assert [(a.status_code, REPLAYED in a) for a in answers] == [(201, False)] * 2
    assert state() == (0, [])
    assert "commit_in() was rolled back" in caplog.text


def test_a_refusal_before_the_block_is_stored() -> None:
    assert [REPLAYED in buy("without") for _ in range(2)] == [False, True]


def test_a_success_without_the_block_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "lockkit"):
        assert buy("without?status=200").status_code == 200
    assert "commit_in" in caplog.text


def test_a_success_without_commit_in_stands_although_the_lease_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing can be undone, so its client must not hear that nothing was done."""

    def lost(_: OpenOrder) -> None:
        raise LeaseLost("paused for too long")

    monkeypatch.setattr(OpenOrder, "check_leases", lost)
    assert buy("without?status=200").status_code == 200


@pytest.mark.parametrize("kind", ["loses-outside", "conflicts-outside"])
def test_an_error_outside_of_the_block_says_not_that_nothing_was_saved(kind: str) -> None:
    """Neither a lease that was lost nor a deadlock undoes what is committed."""
    response = buy(kind)
    assert (response.status_code, b"order-" in response.content) == (500, False)
    assert Sale.objects.count() == 1


def test_a_conflict_inside_the_block_says_that_nothing_was_saved() -> None:
    response = buy("conflicts-inside")
    assert (response.status_code, response.json()["code"]) == (503, "order-not-saved")
    assert state() == (0, [])


@pytest.mark.parametrize("kind", ["loses", "loses-inside", "loses-another"])
def test_a_lost_lease_rolls_back(kind: str) -> None:
    response = buy(kind)
    assert (response.status_code, response.json()["code"]) == (503, "order-lease-lost")
    assert state() == (0, [])


def test_a_second_runner_stops_before_its_effects(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first that had lost its lease commits while the second is on its way to its block."""
    from lockkit_django.orders.commit_in import OwnTransaction

    commit_in = OwnTransaction.commit_in
    answers = []

    def first_then_mine(self: OwnTransaction, block: Any) -> Any:
        monkeypatch.setattr(OwnTransaction, "commit_in", commit_in)
        (held,) = locks["default"].holders()
        assert held.fence is not None
        assert locks["default"].break_(held.name, fence=held.fence)
        answers.append(buy("plain"))  # another process, as it were
        return commit_in(self, block)

    monkeypatch.setattr(OwnTransaction, "commit_in", first_then_mine)
    second = buy("plain")
    assert (answers[0].status_code, second[REPLAYED]) == (201, "true")
    assert second.content == answers[0].content
    assert (state(), views.calls) == ((1, ["done"]), ["plain"])


def test_an_async_class_opens_its_order_in_the_event_loop(project: bool) -> None:
    answers = [buy("async-class") for _ in range(2)]
    if project:  # as Django says of async views
        assert [answer.status_code for answer in answers] == [500, 500]
        assert views.calls == []
    else:
        assert [REPLAYED in answer for answer in answers] == [False, True]
        assert views.calls == ["async-class"]


@pytest.mark.parametrize(("query", "expected"), [("?respond", 201), ("", 409)])
def test_a_process_that_is_killed_after_the_commit(query: str, expected: int) -> None:
    connections.close_all()
    child = os.fork()
    if child == 0:
        try:
            buy(f"dies-after-commit{query}")
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    answer = buy(f"dies-after-commit{query}")
    assert (answer.status_code, REPLAYED in answer) == (expected, expected == 201)
    assert (Sale.objects.count(), views.calls) == (1, [])


def test_a_duplicate_waits_for_the_response_after_the_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the two the order is done, and who has its lock is about to say how."""
    update = rows.update
    duplicates: list[Future[Any]] = []

    def duplicate_first(*args: Any) -> None:
        duplicates.append(pool.submit(buy_and_close, "plain"))
        deadline = time.monotonic() + 30
        while not any(info.waiters for info in locks["default"].holders()):
            assert not duplicates[0].done()
            assert time.monotonic() < deadline
            threading.Event().wait(0.005)
        update(*args)

    monkeypatch.setattr(rows, "update", duplicate_first)
    waiting = override_settings(LOCKKIT_ORDERS={"PATHS": ["^/orders/"], "WAIT": 30})
    with waiting, ThreadPoolExecutor(1) as pool:
        first = buy("plain")
        second = duplicates[0].result(30)
    assert (second.content, second[REPLAYED]) == (first.content, "true")
    assert views.calls == ["plain"]


def test_a_duplicate_that_waited_in_vain_hears_that_the_first_still_runs() -> None:
    """It is committed, and its response is on its way: that is not for the application to guess."""
    claiming.known["A-1"] = HttpResponse("not this one")
    rules = {
        "PATHS": ["^/orders/"],
        "WAIT": 0.05,
        "RECOVER": "orders_django.claiming.recover",
    }
    with override_settings(LOCKKIT_ORDERS=rules), ThreadPoolExecutor(2) as pool:
        first = pool.submit(buy_and_close, "mails")
        try:
            assert views.started.wait(30)
            late = pool.submit(buy_and_close, "mails").result(30)
        finally:
            views.go_on.set()
            claiming.known.clear()
        again = [first.result(30), buy("mails")]
    assert (late.status_code, late.json()["code"]) == (409, "order-running")
    assert [(each.status_code, REPLAYED in each) for each in again] == [(201, False), (201, True)]
    assert views.calls == ["mails"]


def test_a_second_runner_that_meets_the_first_before_its_response_hears_that_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has lost its lease without knowing, so it is no judge of who is gone."""
    from lockkit_django.orders.commit_in import OwnTransaction

    commit_in = OwnTransaction.commit_in
    others: list[Future[Any]] = []

    def first_then_mine(self: OwnTransaction, block: Any) -> Any:
        monkeypatch.setattr(OwnTransaction, "commit_in", commit_in)
        (held,) = locks["default"].holders()
        assert held.fence is not None
        assert locks["default"].break_(held.name, fence=held.fence)
        others.append(pool.submit(buy_and_close, "mails"))
        assert views.started.wait(30)
        return commit_in(self, block)

    monkeypatch.setattr(OwnTransaction, "commit_in", first_then_mine)
    with ThreadPoolExecutor(1) as pool:
        try:
            late = buy("mails")
        finally:
            views.go_on.set()
        first = others[0].result(30)
    assert (late.status_code, late.json()["code"]) == (409, "order-running")
    assert (first.status_code, buy("mails")[REPLAYED]) == (201, "true")
    assert state() == (1, ["done"])


def buy_and_close(kind: str) -> Any:
    try:
        return buy(kind)
    finally:
        connections.close_all()
