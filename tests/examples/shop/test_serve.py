"""``manage.py serve``: the shop for a browser, on a Django machine and on its Flask twin."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import lockkit
from lockkit.testing.conformance.base import at_least_once

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("example_importable")]

TOKEN = "a-token-of-this-test"
MACHINES = {"django": 0, "flask": 1}


class Served:
    """A running ``serve``: its machines, and its locks as the test sees them."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        assert process.stdout is not None
        self.ports: list[int] = []
        for line in process.stdout:
            self.ports += [int(port) for port in re.findall(r"http://127.0.0.1:(\d+)", line)]
            if line.startswith("Open"):
                break
        assert len(self.ports) == 2
        self.database = folder / "shop.sqlite3"
        self.locks_url = f"sqlite:///{folder / 'shop.lockkit.sqlite3'}"

    def ask(
        self, port: int, method: str, path: str, body: str | None = None, **headers: str
    ) -> tuple[int, http.client.HTTPMessage, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, body, given)
            response = connection.getresponse()
            return response.status, response.headers, response.read().decode()
        finally:
            connection.close()

    def sell(self, port: int, order_id: str) -> int:
        """A sale of the race, which takes its time while it has the lock."""
        body = json.dumps({"order_id": order_id})
        status, headers, _ = self.ask(
            port, "POST", "/race/lockkit/mug", body, Content_Type="application/json",
            Authorization=f"Bearer {TOKEN}", X_User="a-buyer",
        )  # fmt: skip
        assert status != 423 or headers["Retry-After"]
        return status


@pytest.fixture(scope="module")
def served(
    start_for_all: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("shop")
    process = start_for_all(
        "serve", "--ports", "0,0", "--machines", "django,flask",
        SHOP_DATABASE_URL=f"sqlite:///{folder / 'shop.sqlite3'}",
        SHOP_RACE_TOKEN=TOKEN, SHOP_THINK_MS="700", SHOP_WAIT_MS="0",
    )  # fmt: skip
    return Served(process, folder)


@pytest.fixture(params=MACHINES)
def port(served: Served, request: pytest.FixtureRequest) -> int:
    return served.ports[MACHINES[request.param]]


class Customer:
    """A browser that has logged in, and a form."""

    def __init__(self, port: int, user: str) -> None:
        from race.browser import Browser

        self.url = f"http://127.0.0.1:{port}"
        self.browser = Browser()
        self.browser.log_in(self.url, user)

    def form(self, **changed: str) -> dict[str, str]:
        return self.browser.form(self.url, "mug") | {"quantity": "1"} | changed

    def buy(self, form: dict[str, str]) -> Any:
        return self.browser.post(f"{self.url}/orders/", form)


def test_the_page_shows_stock_machines_and_locks(served: Served, port: int) -> None:
    status, headers, html = served.ask(port, "GET", "/")
    assert status == 200
    assert re.search(r'data-sku="mug">\d+<', html)
    assert all(f"http://127.0.0.1:{other}" in html for other in served.ports)
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    for asset in ("/shop.js", "/shop.css"):
        assert served.ask(port, "GET", asset)[0] == 200
    assert served.ask(port, "GET", "/settings.py")[0] == 404


def test_each_look_at_the_page_is_another_order(port: int) -> None:
    customer = Customer(port, "alice")
    assert customer.form()["order_id"] != customer.form()["order_id"]


def test_a_form_sent_twice_is_one_order(port: int) -> None:
    customer = Customer(port, "bob")
    form = customer.form()
    first, second = customer.buy(form), customer.buy(form)
    assert (first.status, first.replayed) == (201, False)
    assert (second.status, second.replayed) == (201, True)
    assert first.body == second.body
    assert customer.buy(form | {"quantity": "2"}).status == 422


def test_both_frameworks_write_records_of_one_kind(served: Served) -> None:
    since = int(time.time() * 1e6)
    for port in served.ports:
        customer = Customer(port, "carol")
        assert customer.buy(customer.form(sku="shirt")).status == 201
    with closing(sqlite3.connect(served.database)) as database:
        lifetimes = database.execute(
            "SELECT expires - created FROM lockkit_order WHERE created >= ?", (since,)
        ).fetchall()
    assert lifetimes == [(pytest.approx(86400e6),)] * len(served.ports)


def test_the_locks_are_shown_while_they_are_held(served: Served, port: int) -> None:
    name = lockkit.name("stock:{sku}", sku="<script>alert(1)</script>")
    locks = lockkit.connect(served.locks_url)
    with locks.lock(name, label="a test"):
        shown = json.loads(served.ask(port, "GET", "/status.json")[2])["locks"]
    locks.close()
    (lock,) = [one for one in shown if one["name"] == name]
    assert (lock["state"], lock["stuck"], lock["waiters"]) == ("held", None, 0)
    assert lock["owner"].endswith("a test")


@pytest.mark.parametrize(("holder", "other"), [("flask", "django"), ("django", "flask")])
def test_a_lock_held_through_one_framework_is_busy_for_the_other(
    served: Served, holder: str, other: str
) -> None:
    holding, asking = served.ports[MACHINES[holder]], served.ports[MACHINES[other]]

    def is_refused() -> bool:
        with ThreadPoolExecutor(1) as pool:
            sale = pool.submit(served.sell, holding, str(uuid4()))
            while "stock:mug" not in served.ask(asking, "GET", "/status.json")[2]:
                if sale.done():
                    return False
            status = served.sell(asking, str(uuid4()))
            assert sale.result() == 201
        return status == 423

    at_least_once(is_refused)
    assert served.sell(asking, str(uuid4())) == 201


def test_only_the_forms_of_the_shop_are_taken(served: Served, port: int) -> None:
    for path in ("/orders/", "/login", "/logout"):
        form = {"Content_Type": "application/x-www-form-urlencoded"}
        assert served.ask(port, "POST", path, "user=alice&sku=mug&order_id=1", **form)[0] == 403


def test_a_form_of_a_user_is_worth_nothing_after_his_logout(port: int) -> None:
    customer = Customer(port, "carol")
    form = customer.form()
    customer.browser.post(f"{customer.url}/logout", customer.form())
    assert customer.buy(customer.form(order_id=form["order_id"])).status == 403
    assert customer.buy(customer.form()).status == 201  # as a guest


def test_an_order_id_is_required(port: int) -> None:
    customer = Customer(port, "carol")
    form = customer.form()
    del form["order_id"]
    assert customer.buy(form).status == 400


def test_nobody_becomes_an_unknown_user(port: int) -> None:
    customer = Customer(port, "carol")
    reply = customer.browser.post(f"{customer.url}/login", customer.form(user="admin"))
    assert reply.status == 403


def test_the_race_needs_its_token(served: Served, port: int) -> None:
    for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": "Bearer \xe9"}):
        assert served.ask(port, "POST", "/race/lockkit/mug", "{}", **headers)[0] == 403


def test_wrong_orders_are_refused(port: int) -> None:
    customer = Customer(port, "alice")
    form = customer.form()
    wrong = {
        "quantity": ["0", "-1", "1e3", "9" * 5000, "²", ""],
        "sku": ["", "x" * 300, "no-such-thing", "a\nb", "\x00"],
        "order_id": ["\r\nX: y", "x" * 300, ""],
    }
    for field, values in wrong.items():
        for value in values:
            reply = customer.buy(form | {"order_id": customer.form()["order_id"], field: value})
            assert 400 <= reply.status < 500, (field, value)


def test_wrong_json_is_refused(served: Served, port: int) -> None:
    headers = {"Content_Type": "application/json", "Authorization": f"Bearer {TOKEN}",
               "X_User": "a-buyer"}  # fmt: skip
    for body in ("", "[]", "{", '{"order_id": 1}', "[" * 100_000, '"\\ud800"'):
        status, *_ = served.ask(port, "POST", "/race/lockkit/shirt", body, **headers)
        assert status == 400, body[:10]


def test_the_page_of_one_machine_may_talk_to_the_other_and_nobody_elses(
    served: Served, port: int
) -> None:
    for origin, allowed in [
        (f"http://127.0.0.1:{served.ports[0]}", True),
        ("http://127.0.0.1:1", False),
        ("null", False),
    ]:
        headers = served.ask(port, "GET", "/ping", Origin=origin)[1]
        assert (headers["Access-Control-Allow-Origin"] == origin) is allowed


def test_two_django_machines_serve_until_they_are_told_to_end(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    database = f"sqlite:///{tmp_path / 'shop.sqlite3'}"
    process = start("serve", "--ports", "0,0", SHOP_DATABASE_URL=database)
    served = Served(process, tmp_path)
    html = served.ask(served.ports[0], "GET", "/")[2]
    for port in served.ports:  # machines of one framework take one another's forms
        assert f'formaction="http://127.0.0.1:{port}/orders/"' in html
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    for port in served.ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)


def test_a_port_that_is_taken_is_said(start: Callable[..., Any], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start("serve", "--ports", f"{port},0",
                        SHOP_DATABASE_URL=f"sqlite:///{tmp_path / 'shop.sqlite3'}")  # fmt: skip
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"port {port}" in said
    assert "--ports" in said
    assert "Traceback" not in said
