"""An order takes effect once, however it ends, and every duplicate gets its answer."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from order_suite import OpenShop, Shop, Suite, twice


class Duplicates(Suite):
    @pytest.mark.parametrize("kind", ["function", "class", "async"])
    def test_a_duplicate_gets_the_same_bytes_and_the_view_does_not_run(
        self, shop: Shop, kind: str
    ) -> None:
        first, second = twice(shop, kind)
        assert (first.status, first.replayed) == (201, False)
        assert (second.status, second.replayed) == (201, True)
        assert second.body == first.body
        assert second.headers["Content-Type"] == first.headers["Content-Type"]
        assert (shop.runs(), shop.rows(kind), len(shop.records())) == ([kind], 1, 1)
        assert not shop.is_anything_held()

    @pytest.mark.parametrize("kind", ["broken", "returns-500"])
    def test_a_failure_is_rolled_back_and_the_next_try_runs(self, shop: Shop, kind: str) -> None:
        answers = twice(shop, kind)
        assert [(answer.status, answer.replayed) for answer in answers] == [(500, False)] * 2
        assert (shop.runs(), shop.rows(kind), shop.records()) == ([kind] * 2, 0, [])
        assert not shop.is_anything_held()

    def test_an_exception_that_becomes_a_4xx_rolls_back_and_is_stored(self, shop: Shop) -> None:
        first, second = twice(shop, "not-found")
        assert (first.status, second.status, second.replayed) == (404, 404, True)
        assert second.body == first.body
        assert (shop.runs(), shop.rows("not-found")) == (["not-found"], 0)

    @pytest.mark.parametrize("status", [200, 201, 204, 301, 303, 400, 402, 404, 410, 422])
    def test_statuses_that_end_an_order(self, shop: Shop, status: int) -> None:
        first, second = twice(shop, f"status/{status}")
        assert (second.status, second.replayed) == (status, True)
        assert (second.body, shop.rows(str(status))) == (first.body, 1)

    @pytest.mark.parametrize("status", [401, 403, 408, 409, 423, 425, 429, 500, 503])
    def test_statuses_that_another_try_may_overcome(self, shop: Shop, status: int) -> None:
        """A refusal keeps what was saved."""
        answers = twice(shop, f"status/{status}")
        assert [answer.status for answer in answers] == [status, status]
        saved = 2 if status < 500 else 0
        assert (shop.runs(), shop.rows(str(status))) == ([str(status)] * 2, saved)
        assert shop.records() == []

    def test_another_route_is_another_order(self, shop: Shop) -> None:
        assert not shop.send("function").replayed
        assert not shop.send("class").replayed

    def test_a_record_that_expired_does_not_count(self, shop: Shop) -> None:
        shop.send("function")
        shop.change_records(expires=1)
        assert [answer.replayed for answer in twice(shop, "function")] == [False, True]
        assert (shop.rows("function"), len(shop.records())) == (2, 1)

    @pytest.mark.parametrize(
        "change",
        [
            {"version": 99},
            {"fingerprint": "99:abc"},
            {"state": "new"},
            {"headers": "[[1]]"},
            {"headers": '[["Location", "/a\\nSet-Cookie: b"]]'},
            {"status": 0},
        ],
        ids=str,
    )
    def test_a_record_that_cannot_be_read_is_not_run_over(
        self, shop: Shop, change: dict[str, object]
    ) -> None:
        shop.send("function")
        shop.change_records(**change)
        answer = shop.send("function")
        assert (answer.status, answer.code) == (503, "order-record-unreadable")
        assert int(answer.headers["Retry-After"]) > 0
        assert shop.rows("function") == 1

    @pytest.mark.parametrize("policy", ["block", "retry"])
    def test_a_record_that_was_left_running_is_an_orphan(
        self, open_shop: OpenShop, policy: str
    ) -> None:
        """A view that commits by SQL leaves one, and nobody knows what else it has saved."""
        shop = open_shop(ORPHANS=policy)
        shop.send("function")
        shop.change_records(state="running")
        answers = twice(shop, "function")
        assert [(each.status, each.code) for each in answers] == [(409, "order-orphaned")] * 2
        assert shop.rows("function") == 1

    @pytest.mark.parametrize("kind", ["streaming", "large"])
    def test_what_cannot_be_kept_leaves_a_tombstone(self, open_shop: OpenShop, kind: str) -> None:
        shop = open_shop(MAX_RESPONSE=1000)
        first, second = twice(shop, kind)
        assert first.status == 200
        assert (second.status, second.code) == (409, "order-completed")
        assert second.headers["Location"] == first.headers["Location"]
        assert shop.rows(kind) == 1

    def test_only_headers_of_the_list_are_stored(self, shop: Shop) -> None:
        first, second = twice(shop, "cookie")
        assert "of-the-first" in first.headers["Set-Cookie"]
        assert (first.headers["X-Other"], second.headers["ETag"]) == ("1", '"e"')
        assert "of-the-first" not in second.headers.get("Set-Cookie", "")
        assert "X-Other" not in second.headers
        assert "of-the-first" not in shop.records()[0]["headers"]

    def test_headers_that_guard_the_client_are_stored(self, shop: Shop) -> None:
        """Without them a safe download would be a page that runs scripts."""
        first, second = twice(shop, "download")
        assert second.replayed
        for answer in (first, second):
            assert {name: answer.headers[name] for name in GUARDS} == GUARDS


GUARDS = {
    "Cache-Control": "private, no-store",
    "Content-Disposition": 'attachment; filename="invoice.html"',
    "Content-Security-Policy": "sandbox",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Locks(Suite):
    def test_a_view_that_loses_its_lease_is_rolled_back(self, shop: Shop) -> None:
        answer = shop.send("loses")
        assert (answer.status, answer.code) == (503, "order-lease-lost")
        assert (shop.rows("loses"), shop.records()) == (0, [])

    @pytest.mark.parametrize(
        ("settings", "code", "told"),
        [
            ({}, "409 order-running", "was not granted within 0.2 s; it is held by"),
            ({"MAX_WAITERS": 0}, "503 order-waiting-room-full", "is held by"),
        ],
    )
    def test_a_busy_order_is_logged_with_its_lock_and_who_holds_it(
        self,
        settings: dict[str, Any],
        code: str,
        told: str,
        open_shop: OpenShop,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        shop = open_shop(**settings)
        shop.send("function")
        name = f"order:{shop.records()[0]['key']}"
        shop.change_records(expires=1)
        with shop.hold(name), caplog.at_level(logging.INFO, "lockkit"):
            answer = shop.send("function")
        assert str(answer.status) in code
        line = f"POST /orders/function gets {code} for the order 'A-1': "
        assert line in caplog.text
        assert f"{name!r} {told}" in caplog.text
        assert name not in answer.body.decode() + str(answer.headers)

    def test_a_view_with_a_lock_that_is_busy_is_not_an_order_yet(
        self, shop: Shop, caplog: pytest.LogCaptureFixture
    ) -> None:
        with shop.hold("stock:s1"), caplog.at_level(logging.INFO, "lockkit"):
            assert shop.send("locked/s1").status == 423
        told = "POST /orders/locked/s1 gets 423 lock-busy for the order 'A-1': 'stock:s1' is held"
        assert told in caplog.text
        assert shop.records() == []
        assert shop.send("locked/s1").status == 201
        assert not shop.is_anything_held()
