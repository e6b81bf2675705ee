"""Which requests are orders, where their IDs are, and what is the same request again."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from order_suite import FORM, JSON, TEXT, OpenShop, Shop, Suite, multipart, twice


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Those about order IDs, without what Flask says of PATHS at the first request."""
    of_ours = [each for each in caplog.records if each.name == "lockkit"]
    said = [each.getMessage() for each in of_ours if each.levelno == logging.WARNING]
    return [text for text in said if "order ID" in text]


class OrderIds(Suite):
    @pytest.mark.parametrize(
        ("value", "same"),
        [("A-1", True), ('"A-1"', True), ('  "A-1" ', True), ("A-2", False), ('"A-1 "', False)],
    )
    def test_an_order_id_is_bare_or_a_quoted_string(
        self, shop: Shop, value: str, same: bool
    ) -> None:
        shop.send("function", "A-1")
        assert shop.send("function", value).replayed is same

    @pytest.mark.parametrize(
        "value", ["", "a,b", '"a", "b"', '"a', 'a"b"', '"a";p=1', "x" * 256, "é", "a\tb", "a\x7f"]
    )
    def test_a_malformed_order_id_is_refused(self, shop: Shop, value: str) -> None:
        answer = shop.send("function", value)
        assert (answer.status, answer.code) == (400, "order-id-malformed")
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.headers["Cache-Control"] == "no-store"
        assert shop.runs() == []

    def test_what_is_wrong_with_an_order_id_is_said_to_programs_and_the_log(
        self, shop: Shop, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It is in English, and speaks to developers, so no page has it."""
        with caplog.at_level(logging.INFO, "lockkit"):
            answer = shop.send("function", "a,b", headers={"Accept-Language": "zh-hans"})
        assert answer.json["detail"] == "此请求的订单 ID 无法使用。"
        assert answer.json["reason"].startswith("one order ID is allowed")
        assert "function gets 400 order-id-malformed: one order ID is allowed" in caplog.text
        page = shop.send("function", "a,b", headers={"Accept": "text/html"})
        assert b"is allowed" not in page.body

    def test_no_order_id_where_none_is_required_is_a_plain_request(self, shop: Shop) -> None:
        assert [answer.status for answer in twice(shop, "function", key=None)] == [201, 201]
        assert (shop.rows("function"), shop.records()) == (2, [])

    def test_a_plain_request_is_told_of_once_unless_the_settings_allow_it(
        self, open_shop: OpenShop, caplog: pytest.LogCaptureFixture
    ) -> None:
        shop = open_shop()
        shop.send("function", "A-1")
        assert warnings(caplog) == []
        for kind in ("function", "fields"):
            shop.send(kind, None)
        (message,) = warnings(caplog)
        assert message.startswith("POST /orders/function runs without an order ID")
        assert "LOCKKIT_ORDERS['REQUIRED'] to True" in message

    @pytest.mark.parametrize("required", [True, False])
    def test_what_the_settings_say_of_it_is_not_told(
        self, open_shop: OpenShop, required: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        open_shop(REQUIRED=required).send("function", None)
        assert warnings(caplog) == []

    def test_what_is_no_order_is_not_told_of(
        self, shop: Shop, caplog: pytest.LogCaptureFixture
    ) -> None:
        shop.send("function", None, method="GET")
        shop.send("parsing", None, below="/uncovered/", content_type=FORM)
        assert warnings(caplog) == []

    def test_no_order_id_where_one_is_required_is_refused(self, open_shop: OpenShop) -> None:
        shop = open_shop(REQUIRED=True)
        answer = shop.send("function", None)
        assert (answer.status, answer.code, shop.runs()) == (400, "order-id-missing", [])

    def test_where_it_belongs_is_said_to_programs(self, open_shop: OpenShop) -> None:
        shop = open_shop(REQUIRED=True, ORDER_ID=["header:X-Order-ID", "form:order_id"])
        answer = shop.send("function", None, headers={"Accept-Language": "zh-hans"})
        assert "此请求需要一个订单 ID" in answer.json["detail"]
        assert answer.json["reason"] == "it is read from header:X-Order-ID or form:order_id"
        page = shop.send("function", None, headers={"Accept": "text/html"})
        assert b"form:order_id" not in page.body

    @pytest.mark.parametrize(
        "sent",
        [
            {"body": b'{"order_id": "B"}', "content_type": JSON},
            {"body": b"order_id=B", "content_type": FORM},
            {"headers": {"X-Order-ID": "B"}},
        ],
        ids=["json", "form", "X-Order-ID"],
    )
    def test_it_may_be_in_the_body_or_another_header(
        self, shop: Shop, sent: dict[str, Any]
    ) -> None:
        first, second = twice(shop, "fields", key=None, **sent)
        assert (first.status, second.replayed, shop.rows("fields")) == (201, True, 1)

    def test_it_may_be_in_the_url(self, open_shop: OpenShop) -> None:
        shop = open_shop(ORDER_ID=["kwargs:number"])
        first, second = twice(shop, "7/pay", key=None)
        other = shop.send("8/pay", None)
        assert (first.status, second.replayed) == (201, True)
        assert (other.replayed, shop.rows("fields")) == (False, 2)

    @pytest.mark.parametrize(
        "body",
        [
            "{",
            "[" * 100_000,
            '{"order_id": 1.5}',
            '{"order_id": true}',
            '{"order_id": {}}',
            '{"order_id": ""}',
            '{"order_id": "A", "order_id": "B"}',
        ],
    )
    def test_a_body_without_a_usable_one_is_refused(self, shop: Shop, body: str) -> None:
        answer = shop.send("fields", None, body=body.encode(), content_type=JSON)
        assert (answer.status, shop.runs()) == (400, [])

    def test_views_that_are_exempt_or_have_a_source_of_their_own(self, shop: Shop) -> None:
        twice(shop, "exempt")
        assert shop.rows("exempt") == 2
        sent = {"key": None, "content_type": JSON}
        answers = twice(shop, "json-number", body=b'{"number": 7}', **sent)
        assert [(each.status, each.replayed) for each in answers] == [(201, False), (201, True)]
        assert shop.send("json-number", body=b'{"other": 1}', **sent).status == 400

    def test_only_the_paths_and_methods_of_the_settings_are_orders(self, shop: Shop) -> None:
        assert [each.status for each in twice(shop, "elsewhere", below="/")] == [201, 201]
        assert [each.status for each in twice(shop, "fields", method="PUT")] == [201, 201]
        assert (shop.rows("fields"), shop.records()) == (4, [])

    def test_a_hostile_path_is_recorded_without_control_characters(self, shop: Shop) -> None:
        assert shop.send("named/a%00b%0Ac%1B%5B31m").status == 201
        assert shop.records()[0]["request"] == "POST /orders/named/a%00b%0Ac%1B%5B31m"


class SameRequests(Suite):
    @pytest.mark.parametrize(
        "change",
        [{"body": b'{"n": 2}'}, {"content_type": TEXT}, {"query": "a=2"}],
        ids=["body", "media type", "query"],
    )
    def test_another_request_with_the_same_order_id_is_refused(
        self, shop: Shop, change: dict[str, Any]
    ) -> None:
        same: dict[str, Any] = {"body": b'{"n": 1}', "content_type": JSON}
        shop.send("fields", **same)
        answer = shop.send("fields", **{**same, **change})
        assert (answer.status, answer.code) == (422, "order-id-reused")
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert shop.rows("fields") == 1

    def test_url_values_and_methods_are_part_of_the_request(self, shop: Shop) -> None:
        shop.send("7/pay")
        assert shop.send("8/pay").status == 422
        assert shop.send("7/pay", method="PATCH").status == 422

    @pytest.mark.parametrize("token", ["csrf_token", "csrfmiddlewaretoken"])
    def test_query_order_and_csrf_tokens_are_no_difference(self, shop: Shop, token: str) -> None:
        first = shop.send(
            "fields", body=f"sku=x&{token}=one".encode(), content_type=FORM, query="a=1&b=2"
        )
        again = shop.send(
            "fields", body=f"sku=x&{token}=two".encode(), content_type=FORM, query="b=2&a=1"
        )
        assert (first.status, again.replayed) == (201, True)

    @pytest.mark.parametrize("method", ["POST", "PATCH"])
    @pytest.mark.parametrize("where", ["form", "query"])
    def test_bytes_that_are_no_utf8_are_compared_as_they_were_sent(
        self, shop: Shop, where: str, method: str
    ) -> None:
        """Frameworks turn all of these bytes into U+FFFD."""

        def send(sent: bytes) -> int:
            body = b"a=%20" + (sent if where == "form" else b"")
            query = sent.decode("latin-1") if where == "query" else ""
            sent_as = {"body": body, "content_type": FORM, "query": query, "method": method}
            return shop.send("fields", **sent_as).status  # type: ignore[arg-type]

        assert [send(b"&name=%FF") for _ in range(2)] == [201, 201]
        others = [b"&name=%FE", b"&name=%EF%BF%BD", b"&name=\\xff", b"&%FF=name"]
        assert [send(other) for other in others] == [422] * 4
        assert shop.rows("fields") == 1

    def test_a_form_with_a_byte_that_is_no_utf8_is_compared_as_it_was_sent(
        self, shop: Shop
    ) -> None:
        """A framework may then read none of its fields."""
        sent = [b"note=\xe9&quantity=%d" % quantity for quantity in (1, 1, 100)]
        answers = [shop.send("function", body=body, content_type=FORM) for body in sent]
        assert [answer.status for answer in answers] == [201, 201, 422]
        assert answers[1].replayed

    @pytest.mark.parametrize("method", ["POST", "PATCH"])
    def test_uploads_are_compared_by_content_whatever_their_boundary(
        self, shop: Shop, method: str
    ) -> None:
        first = shop.send("fields", method=method, **multipart(b"hello", "one"))
        assert first.status == 201
        assert method == "PATCH" or b"hello" in first.body  # the view still reads the file
        assert shop.send("fields", method=method, **multipart(b"hello", "two")).replayed
        assert shop.send("fields", method=method, **multipart(b"other", "one")).status == 422
        renamed = multipart(b"hello", "one", file="b.txt")
        assert shop.send("fields", method=method, **renamed).status == 422

    def test_a_request_that_is_too_large_is_refused(self, open_shop: OpenShop) -> None:
        shop = open_shop(MAX_REQUEST=100)
        large: dict[str, Any] = {"body": b"x" * 101, "content_type": TEXT}
        assert shop.send("fields", **large).status == 413
        assert shop.send("fields", **multipart(b"x" * 101)).status == 413
        assert shop.send("elsewhere", below="/", **large).status == 201
        assert shop.runs() == ["fields"]
