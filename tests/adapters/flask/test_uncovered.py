"""A form with an order ID that is sent to a view that is not an order: the log says so."""

from __future__ import annotations

import logging
from collections.abc import Callable
from io import BytesIO

import pytest
from flask import Flask, request

from lockkit_flask import new_order_id

ORDERS = {"ORDER_ID": ["form:order_id"], "PATHS": ["^/orders"]}


def parsing() -> str:
    return request.form.get("quantity", "")


async def in_loop() -> str:
    return parsing()


def blind() -> str:
    return "no body was read"


VIEWS = {
    "parsing": parsing,
    "in_loop": in_loop,
    "blind": blind,
    "orders": parsing,
}


@pytest.fixture
def app(make_shop: Callable[..., Flask]) -> Flask:
    app = make_shop(SECRET_KEY="x", LOCKKIT_ORDERS=ORDERS)
    for name, view in VIEWS.items():
        app.add_url_rule(f"/{name}", name, view, methods=["POST", "PUT"])
    return app


@pytest.fixture
def value(app: Flask) -> str:
    with app.test_request_context("/"):
        return new_order_id()


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    errors = [each for each in caplog.records if each.levelno == logging.ERROR]
    return [each.getMessage() for each in errors if each.name == "lockkit"]


@pytest.mark.parametrize("view", ["in_loop"])
@pytest.mark.parametrize("kind", ["multipart/form-data", "application/x-www-form-urlencoded"])
def test_a_form_that_the_view_has_parsed(
    app: Flask, view: str, kind: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    sent = {"another": value, "quantity": "1"}
    assert app.test_client().post(f"/{view}", data=sent, content_type=kind).text == "1"
    (message,) = told(caplog)
    assert message.startswith(f"POST /{view} has run with the order ID of a form")
    assert value not in message


class Watched(BytesIO):
    """A client's body, which counts how often it is asked for."""

    asked = 0

    def read(self, *size: int | None) -> bytes:
        self.asked += 1
        return super().read(*size)


def test_no_body_is_read_for_it(app: Flask, value: str, caplog: pytest.LogCaptureFixture) -> None:
    body = Watched(f"order_id={value}".encode())
    kind = "application/x-www-form-urlencoded"
    with app.test_request_context(
        "/blind",
        method="POST",
        content_type=kind,
        input_stream=body,
        content_length=len(body.getvalue()),
    ):
        answer = app.full_dispatch_request()
    assert answer.get_data(as_text=True) == "no body was read"
    assert body.asked == 0
    assert told(caplog) == []
