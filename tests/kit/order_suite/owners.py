"""The owner of an order, and the clients that may see its answer."""

from __future__ import annotations

import pytest

from order_suite import OpenShop, Shop, Suite, twice


class Owners(Suite):
    def test_another_user_with_the_same_key_makes_another_order(self, shop: Shop) -> None:
        first, second = shop.send("function"), shop.send("function", user="bob")
        assert (second.status, second.replayed) == (201, False)
        assert first.body != second.body
        assert shop.rows("function") == 2

    def test_clients_with_a_token_are_told_apart_by_it(self, shop: Shop) -> None:
        answers = [
            shop.send("function", user=None, headers={"Authorization": f"Token {token}"})
            for token in "aab"
        ]
        assert [answer.replayed for answer in answers] == [False, True, False]

    @pytest.mark.parametrize(
        "header",
        [
            'Digest username="a", nc={}',
            'hawk id="a", ts="{}"',
            'MAC id="a", nonce="{}"',
            'Signature keyId="a",signature="{}"',
            "AWS a:{}",
            "AWS4-HMAC-SHA256 Signature={}",
            "EG1-HMAC-SHA256 client_token=a;nonce={}",
            "HMAC-SHA256 a:{}",
            "MY-OWN.APP-HMAC-SHA256 a:{}",
            "OSS a:{}",
            "SharedKey a:{}",
            "TC3-HMAC-SHA256 Credential=a, Signature={}",
            'OAuth realm="a", oauth_nonce="{}"',
            "Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.signature-{}",
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.signature-{}",
            'Token token="eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.signature-{}"',
            "Bearer eyJhbGciOiJkaXIifQ..iv.ciphertext-{}.tag",
        ],
    )
    def test_a_header_that_is_another_each_time_owns_nothing(self, shop: Shop, header: str) -> None:
        """Each repeat would be a new order, and nobody would hear of it."""
        for number in (1, 2):
            sent = {"Authorization": header.format(number)}
            answer = shop.send("function", user=None, headers=sent)
            assert (answer.status, answer.code, shop.runs()) == (400, "order-without-owner", [])
            assert "as a JSON web token" in str(answer.json["reason"])

    def test_a_user_who_also_sends_a_token_is_the_user(self, shop: Shop) -> None:
        assert not shop.send("function").replayed
        assert shop.send("function", headers={"Authorization": "Bearer of-mine"}).replayed

    def test_nobody_has_no_orders(self, shop: Shop) -> None:
        answer = shop.send("function", user=None)
        assert (answer.status, answer.code, shop.runs()) == (400, "order-without-owner", [])
        assert "one in a cookie does not count" in str(answer.json["reason"])

    def test_a_hook_says_whose_it_is(self, open_shop: OpenShop) -> None:
        shop = open_shop(SCOPE="order_suite.hooks.cart")
        carts = [{"X-Cart": cart} for cart in ("a", "a", "b")]
        answers = [shop.send("function", user=None, headers=cart) for cart in carts]
        assert [answer.replayed for answer in answers] == [False, True, False]

    def test_a_hook_says_which_tenant_it_is(self, open_shop: OpenShop) -> None:
        shop = open_shop(TENANT="order_suite.hooks.tenant")
        tenants = [{"X-Tenant": tenant} for tenant in ("a", "a", "b")]
        answers = [shop.send("function", headers=tenant) for tenant in tenants]
        assert [answer.replayed for answer in answers] == [False, True, False]


class Replays(Suite):
    def test_whoever_may_not_see_it_again_does_not(self, open_shop: OpenShop) -> None:
        shop = open_shop(AUTHORIZE_REPLAY="order_suite.hooks.may_see_again")
        first = shop.send("function")
        refused = shop.send("function", headers={"X-Revoked": "1"})
        assert (refused.status, refused.code) == (403, "order-replay-refused")
        assert first.body not in refused.body
        assert shop.send("function").replayed
        assert shop.rows("function") == 1

    def test_nor_is_told_where_it_is(self, open_shop: OpenShop) -> None:
        shop = open_shop(AUTHORIZE_REPLAY="order_suite.hooks.may_see_again")
        first = shop.send("streaming")
        refused = shop.send("streaming", headers={"X-Revoked": "1"})
        assert (refused.status, "Location" in refused.headers) == (403, False)
        assert shop.send("streaming").headers["Location"] == first.headers["Location"]

    @pytest.mark.parametrize("hook", ["never_async", "never_awaitable"])
    def test_a_hook_that_is_async_does_not_say_yes_by_being_there(
        self, open_shop: OpenShop, hook: str
    ) -> None:
        shop = open_shop(AUTHORIZE_REPLAY=f"order_suite.hooks.{hook}")
        assert [answer.status for answer in twice(shop, "function")] == [201, 403]

    def test_checks_above_idempotent_are_asked_before_a_replay(self, shop: Shop) -> None:
        first, again = twice(shop, "checked-above")
        refused = shop.send("checked-above", headers={"X-Revoked": "1"})
        assert (first.status, again.replayed, refused.status) == (201, True, 403)
        assert first.body not in refused.body
        assert shop.send("checked-above").replayed
        assert shop.rows("checked-above") == 1

    @pytest.mark.parametrize("kind", ["checked", "checked-below"])
    def test_what_may_be_a_check_of_the_view_is_never_passed_by(
        self, shop: Shop, kind: str
    ) -> None:
        first, again = twice(shop, kind)
        revoked = shop.send(kind, headers={"X-Revoked": "1"})
        assert first.status == 201
        for answer in (again, revoked):
            assert (answer.status, answer.code) == (409, "order-completed")
            assert first.body not in answer.body
            assert "Location" not in answer.headers
        assert shop.rows(kind) == 1
