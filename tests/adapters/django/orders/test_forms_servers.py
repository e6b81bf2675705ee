"""Forms through real servers: the session is the server's own, and so is the event loop."""

from __future__ import annotations

import re
from html import unescape
from http.cookies import SimpleCookie
from pathlib import Path
from urllib.parse import urlencode

import pytest
from orders_django.running import Answer, Machine, environment, machines, migrate

pytestmark = pytest.mark.timeout(360)

FIELD = re.compile(r'<input type="hidden" name="order_id" value="([^"]*)">')
SETTINGS = {"ORDER_ID": ["form:order_id"], "PATHS": ["^/orders/"], "REQUIRED": True}


class Visitor:
    """A browser: it keeps its session."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._session: str | None = None

    def get(self, path: str) -> Answer:
        return self._send("GET", path, b"", None)

    def form(self, path: str) -> str:
        found = FIELD.findall(self.get(path).body.decode())
        return unescape(found[0])

    def buy(self, value: str) -> Answer:
        body = urlencode({"order_id": value}).encode()
        return self._send("POST", "/orders/", body, "application/x-www-form-urlencoded")

    def _send(self, method: str, path: str, body: bytes, content_type: str | None) -> Answer:
        cookies = [("Cookie", f"sessionid={self._session}")] if self._session else []
        answer = self._machine.send(
            path, body, None, token=None, method=method, content_type=content_type, headers=cookies
        )
        for header in answer.headers.get_all("Set-Cookie") or ():
            morsel = SimpleCookie(header).get("sessionid")
            if morsel is not None:
                self._session = morsel.value
        return answer


@pytest.mark.parametrize("server", ["gunicorn", "uvicorn"])
def test_guests_log_in_and_out_between_two_clicks(server: str, tmp_path: Path) -> None:
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "shop.sqlite3")}
    surroundings = environment(
        database, f"sqlite:///{tmp_path / 'locks.sqlite3'}", tmp_path, **SETTINGS
    )
    surroundings["ORDERS_URLS"] = "orders_django.form_urls"
    migrate(surroundings)
    with machines(server, surroundings, home=tmp_path) as (machine,):
        for page in ("/django", "/async", "/late"):
            visitor, thief = Visitor(machine), Visitor(machine)
            value = visitor.form(page)
            first = visitor.buy(value)
            assert (first.status, first.replayed) == (201, False)
            assert thief.buy(value).code == "order-form-of-another"
            visitor.get("/login/alice")
            again = visitor.buy(value)
            assert (again.status, again.replayed, again.body) == (201, True, first.body)
            mine = visitor.form(page)
            visitor.get("/logout")
            assert visitor.buy(value).code == "order-form-of-another"
            assert visitor.buy(mine).code == "order-form-of-another"
