"""A form with an order ID that is sent to a view that is not an order: the log says so."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from io import BytesIO

import pytest
from flask import Flask, request

from lockkit_flask import idempotent, new_order_id

ORDERS = {"ORDER_ID": ["form:order_id"], "PATHS": ["^/orders"]}


def parsing() -> str:
    return request.form.get("quantity", "")


async def in_loop() -> str:
    return parsing()


def reading() -> str:
    return str(request.get_json()["quantity"])


def failing() -> str:
    raise ZeroDivisionError(request.form)


def blind() -> str:
    return "no body was read"


VIEWS = {
    "parsing": parsing,
    "in_loop": in_loop,
    "reading": reading,
    "failing": failing,
    "blind": blind,
    "exempt": idempotent.exempt(partial(parsing)),
    "inside": idempotent(order_id="form:order_id")(parsing),
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


@pytest.mark.parametrize("view", ["parsing", "in_loop"])
@pytest.mark.parametrize("kind", ["multipart/form-data", "application/x-www-form-urlencoded"])
def test_a_form_that_the_view_has_parsed(
    app: Flask, view: str, kind: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    sent = {"another": value, "quantity": "1"}
    assert app.test_client().post(f"/{view}", data=sent, content_type=kind).text == "1"
    (message,) = told(caplog)
    assert message.startswith(f"POST /{view} has run with the order ID of a form")
    assert value not in message


def test_a_body_that_the_view_has_read(
    app: Flask, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    sent = {"order": {"order_id": value}, "quantity": "1"}
    assert app.test_client().put("/reading", json=sent).text == "1"
    assert len(told(caplog)) == 1


def test_a_view_that_fails_may_have_saved(
    app: Flask, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    app.config["PROPAGATE_EXCEPTIONS"] = False
    assert app.test_client().post("/failing", data={"order_id": value}).status_code == 500
    assert len(told(caplog)) == 1


@pytest.mark.parametrize("view", ["exempt", "inside", "orders"])
def test_what_is_an_order_or_none_on_purpose(
    app: Flask, view: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    app.test_client().post(f"/{view}", data={"order_id": value, "quantity": "1"})
    assert told(caplog) == []


def test_what_we_have_not_signed(app: Flask, value: str, caplog: pytest.LogCaptureFixture) -> None:
    for other in ("", "lk1.x", "A-17", value[:-1] + ("A" if value[-1] != "A" else "B")):
        app.test_client().post("/parsing", data={"order_id": other, "quantity": "1"})
    assert told(caplog) == []


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
