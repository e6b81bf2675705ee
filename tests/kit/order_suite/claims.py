"""STORE "redis": orders whose effects are outside a database, where nothing can be rolled back."""

from __future__ import annotations

import pytest

from order_suite import OpenShop, Shop, Suite, twice

CLAIMS = {"STORE": "redis", "NAMESPACE": "shop"}


class Claims(Suite):
    """``open_in_redis``: a fixture of the adapter's, as ``open_shop``, with locks in Redis."""

    @pytest.fixture
    def shop(self, open_in_redis: OpenShop) -> Shop:
        return open_in_redis(**CLAIMS)

    @pytest.mark.parametrize("kind", ["function", "class", "async"])
    def test_a_duplicate_gets_the_same_bytes_and_the_view_does_not_run(
        self, shop: Shop, kind: str
    ) -> None:
        first, second = twice(shop, kind)
        assert (first.status, first.replayed) == (201, False)
        assert (second.status, second.body, second.replayed) == (201, first.body, True)
        assert (shop.runs(), shop.records()) == ([kind], [])
        assert not shop.is_anything_held()

    def test_two_applications_with_one_redis_answer_their_own_users(
        self, open_in_redis: OpenShop
    ) -> None:
        first = open_in_redis(**CLAIMS).send("function")
        other = open_in_redis(**CLAIMS | {"NAMESPACE": "staff"}).send("function")
        assert (first.status, other.status, other.replayed) == (201, 201, False)

    @pytest.mark.parametrize("status", [201, 302, 404, 410, 422])
    def test_statuses_that_end_an_order(self, shop: Shop, status: int) -> None:
        first, second = twice(shop, f"status/{status}")
        assert (second.status, second.body, second.replayed) == (status, first.body, True)

    @pytest.mark.parametrize("status", [401, 409, 423, 429, 500, 503])
    def test_a_view_that_answers_with_what_is_not_stored_may_be_tried_again(
        self, shop: Shop, status: int
    ) -> None:
        assert [answer.status for answer in twice(shop, f"status/{status}")] == [status] * 2
        assert shop.runs() == [str(status)] * 2

    def test_an_exception_that_becomes_a_4xx_is_stored(self, shop: Shop) -> None:
        first, second = twice(shop, "not-found")
        assert (first.status, second.status, second.replayed) == (404, 404, True)
        assert shop.runs() == ["not-found"]

    def test_an_exception_leaves_an_orphan_which_is_not_run_again(self, shop: Shop) -> None:
        first, again = twice(shop, "broken")
        assert (first.status, again.status, again.code) == (500, 409, "order-orphaned")
        assert shop.runs() == ["broken"]
        assert not shop.is_anything_held()

    def test_orphans_are_run_again_if_the_settings_say_so(self, open_in_redis: OpenShop) -> None:
        shop = open_in_redis(**CLAIMS, ORPHANS="retry")
        assert [answer.status for answer in twice(shop, "broken")] == [500, 500]
        assert shop.runs() == ["broken"] * 2

    def test_a_lock_of_the_view_that_is_busy_leaves_no_orphan(self, shop: Shop) -> None:
        with shop.hold("stock:s1"):
            assert shop.send("locked/s1").status == 423
        assert shop.send("locked/s1").status == 201

    def test_other_payloads_other_users_and_nobody(self, shop: Shop) -> None:
        assert shop.send("fields").status == 201
        assert shop.send("fields", body=b"[1]", content_type="application/json").status == 422
        assert not shop.send("fields", user="bob").replayed
        assert shop.send("fields", user=None).status == 400
        assert shop.runs() == ["fields"] * 2
