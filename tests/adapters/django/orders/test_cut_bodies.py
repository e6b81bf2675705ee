"""A client that goes away in the middle of its body makes no order."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest
from orders_django.running import CSRF, Site

pytestmark = pytest.mark.timeout(180)

FIELD = '--b\r\nContent-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
BODIES = {
    "application/json": b'{"quantity": 12}',
    "application/x-www-form-urlencoded": b"quantity=120000",
    "multipart/form-data; boundary=b": (FIELD.format("a", 1) + FIELD.format("n", 12000)).encode()
    + b"--b--\r\n",
}


@pytest.mark.parametrize("method", ["POST", "PATCH"])
@pytest.mark.parametrize("kind", BODIES)
def test_the_next_try_is_the_first(site: Site, order_id: str, kind: str, method: str) -> None:
    body = BODIES[kind]
    head = [
        f"{method} /orders/fields HTTP/1.1",
        "Host: localhost",
        "Authorization: Token a",
        f"Cookie: csrftoken={CSRF}",
        f"X-CSRFToken: {CSRF}",
        f"Idempotency-Key: {order_id}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
    ]
    with closing(socket.create_connection(("127.0.0.1", site.hasty.port), 60)) as client:
        client.sendall("\r\n".join([*head, "", ""]).encode() + body[:-6])
        client.shutdown(socket.SHUT_WR)
        answer = client.makefile("rb").readline()
    assert answer == b"" or b" 400 " in answer
    whole = site.hasty.send("/orders/fields", body, order_id, method=method, content_type=kind)
    assert (whole.status, whole.replayed) == (201, False)
