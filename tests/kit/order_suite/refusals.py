"""What a view saves before it refuses stays saved, as without orders: no header undoes it."""

from __future__ import annotations

import secrets

import pytest

from order_suite import Shop, Suite


class Refusals(Suite):
    @pytest.mark.parametrize("kind", ["denies", "denies-inside", "status/429"])
    def test_a_refusal_keeps_what_it_keeps_without_an_order(self, shop: Shop, kind: str) -> None:
        name = kind.removeprefix("status/")
        without = shop.send(kind, None)
        assert shop.rows(name) == 1
        for number in (2, 3):
            answer = shop.send(kind)
            assert (answer.status, answer.replayed) == (without.status, False)
            assert (shop.rows(name), shop.records()) == (number, [])
        assert not shop.is_anything_held()

    def test_a_header_does_not_undo_the_counter_of_guesses(self, shop: Shop) -> None:
        """Each of seven guesses counts, with a new order ID or with the same one."""
        for number in range(1, 8):
            key = secrets.token_hex(8) if number % 2 else "A-1"
            assert shop.send("denies", key).status == 403
            assert shop.rows("denies") == number

    @pytest.mark.parametrize("accept", ["*/*", "text/html"])
    @pytest.mark.parametrize(
        ("asked", "language", "said"),
        [
            ("zh-hans", "zh-hans", "此订单 ID 已用于其他内容"),
            ("fr", "en", "This was sent before with different content"),
        ],
    )
    def test_a_refusal_is_in_the_language_of_the_visitor(
        self, shop: Shop, accept: str, asked: str, language: str, said: str
    ) -> None:
        headers = {"Accept": accept, "Accept-Language": asked}
        shop.send("function", headers=headers)
        answer = shop.send("function", headers=headers, body=b"other")
        assert (answer.status, answer.headers["Content-Language"]) == (422, language)
        assert said in (answer.body.decode() if "html" in accept else answer.json["title"])

    def test_the_refused_order_is_made_once_when_it_is_let_in(self, shop: Shop) -> None:
        assert shop.send("once").status == 403
        answers = [shop.send("once", headers={"X-Allowed": "1"}) for _ in range(3)]
        assert [answer.status for answer in answers] == [201] * 3
        assert [answer.replayed for answer in answers] == [False, True, True]
        assert shop.rows("once") == 2

    def test_one_that_comes_after_the_lease_saves_nothing_and_says_so(self, shop: Shop) -> None:
        answer = shop.send("loses", headers={"X-Denied": "1"})
        assert (answer.status, answer.code) == (503, "order-lease-lost")
        assert (shop.rows("loses"), shop.records()) == (0, [])


BEFORE = {"cart": {"A1": [1]}, "shown": True}
AFTER = {"shown": True, "thanks": True}


class Carts(Suite):
    """The session is rolled back with its order, or the cart would be gone as well."""

    @pytest.mark.parametrize("end", ["returns-503", "raises-404", "fails"])
    def test_the_cart_comes_back_with_the_order(self, shop: Shop, end: str) -> None:
        assert shop.send("cart", None, below="/").json == BEFORE
        assert shop.send(f"cart/{end}").status in (404, 500, 503)
        assert shop.send("cart", None, below="/", method="GET").json == BEFORE
        assert shop.rows("cart") == 0

    @pytest.mark.parametrize("end", ["succeeds", "denies"])
    def test_what_is_saved_is_saved_with_its_session(self, shop: Shop, end: str) -> None:
        shop.send("cart", None, below="/")
        assert shop.send(f"cart/{end}").status in (201, 403)
        assert shop.send("cart", None, below="/", method="GET").json == AFTER
        assert shop.rows("cart") == 1
