"""Every row of the table "what a client sees", through servers that really run.

gunicorn calls the app with threads; uvicorn is an ASGI server, and a2wsgi stands between.
"""

from __future__ import annotations

import http.client
import json
import os
import queue
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import sqlalchemy as sa
from flask_project import Order, create_app, db
from flask_project.served import LARGEST_REQUEST, LARGEST_RESPONSE, MOST_WAITERS
from places import KIT
from stalling import stalled

from lockkit.orders.rows import TABLE as TABLE_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMANDS = {
    "gunicorn": [
        "gunicorn", "--threads", "12", "--no-control-socket", "--bind", "127.0.0.1:0",
        "flask_project.served:wsgi()",
    ],
    "uvicorn": [
        "uvicorn", "--factory", "--lifespan", "off", "--port", "0", "flask_project.served:asgi",
    ],
}  # fmt: skip
pytestmark = pytest.mark.timeout(120)


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def replayed(self) -> bool:
        return self.headers.get("idempotent-replayed") == "true"

    @property
    def code(self) -> str:
        """Of a refusal, which has to be one."""
        assert self.headers["content-type"] == "application/problem+json"
        assert self.headers["cache-control"] == "no-store"
        problem = json.loads(self.body)
        assert problem["status"] == self.status
        return str(problem["code"])


class Shop:
    """A server, from outside; and its database."""

    def __init__(self, port: int, database: str) -> None:
        self.port = port
        self._app = create_app(SQLALCHEMY_DATABASE_URI=database, LOCKKIT_URL="memory://")

    def post(
        self,
        path: str,
        body: bytes = b"{}",
        *,
        order_id: str | None = None,
        headers: dict[str, str] | None = None,
        chunked: bool = False,
    ) -> Answer:
        sent = {"X-User": "alice", "Content-Type": "application/json", **(headers or {})}
        if order_id is not None:
            sent["Idempotency-Key"] = order_id
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            parts: Any = iter([body]) if chunked else body
            connection.request("POST", path, parts, sent, encode_chunked=chunked)
            response = connection.getresponse()
            pairs = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, pairs, response.read())
        finally:
            connection.close()

    def orders(self, name: str) -> int:
        with self._app.app_context():
            query = sa.select(sa.func.count()).select_from(Order).where(Order.name == name)
            count = int(db.session.execute(query).scalar_one())
            db.session.remove()
            return count

    def change(self, order_id: str, column: str, value: int) -> None:
        """Of the record of this order."""
        table = db.metadata.tables[TABLE_NAME]
        with self._app.app_context(), db.engine.begin() as connection:
            mine = sa.update(table).where(table.c.order_id == order_id)
            connection.execute(mine.values({column: value}))

    def close(self) -> None:
        with self._app.app_context():
            db.engine.dispose()


@pytest.fixture(scope="module", params=COMMANDS)
def shop(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    place = tmp_path_factory.mktemp("served")
    database = f"sqlite:///{place / 'shop.sqlite3'}"
    environment = {
        **os.environ,
        "SHOP_DATABASE": database,
        "LOCKKIT_URL": f"sqlite:///{place / 'locks.sqlite3'}",
        "PYTHONPATH": os.pathsep.join([str(KIT), os.environ.get("PYTHONPATH", "")]),
    }
    with _server(COMMANDS[request.param], environment) as port:
        shop = Shop(port, database)
        yield shop
        shop.close()


@contextmanager
def _server(command: list[str], environment: dict[str, str]) -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-m", *command],
        env=environment,
        cwd=KIT,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        rest = threading.Thread(target=process.stderr.read)  # or its pipe fills up
        try:
            port = _port(process.stderr)
            rest.start()
            yield port
        finally:
            process.terminate()
            if rest.is_alive():
                rest.join()  # nobody closes what it reads


def _port(log: Any) -> int:
    """Gunicorn tells its address before its worker listens; uvicorn when it does."""
    port = None
    for line in log:
        for word in line.replace("http://", " ").split():
            if word.startswith("127.0.0.1:"):
                port = int(word.partition(":")[2])
        if port is not None and ("Booting worker" in line or "Uvicorn running" in line):
            return port
    raise AssertionError("the server did not start")


def test_first_and_repeated(shop: Shop) -> None:
    first = shop.post("/covered/one", order_id='"one 1"')
    sold = shop.orders("one")
    again = shop.post("/covered/one", order_id='"one 1"')
    assert (first.status, first.replayed) == (201, False)
    assert (again.status, again.replayed, again.body) == (201, True, first.body)
    assert first.headers["set-cookie"] == "secret=1"
    assert "set-cookie" not in again.headers
    assert again.headers["location"] == first.headers["location"]
    assert again.headers["content-type"] == first.headers["content-type"]
    assert shop.orders("one") == sold


def test_ten_at_once(shop: Shop) -> None:
    answers: list[Answer] = []

    def buy() -> None:
        answers.append(shop.post("/covered/slow", order_id="slow-1"))

    threads = [threading.Thread(target=buy) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.status for answer in answers] == [200] * 10
    assert len({answer.body for answer in answers}) == 1
    assert sum(answer.replayed for answer in answers) == 9
    assert shop.orders("slow") == 1


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ({}, "order-id-missing"),
        ({"order_id": ""}, "order-id-malformed"),
        ({"order_id": "x" * 256}, "order-id-malformed"),
        ({"order_id": '"open'}, "order-id-malformed"),
        ({"order_id": "a, b"}, "order-id-malformed"),
        ({"order_id": "\xe9"}, "order-id-malformed"),
        ({"body": b'{"order_id": [1]}'}, "order-id-malformed"),
        ({"body": b"{"}, "order-id-malformed"),
        ({"order_id": "1", "headers": {"X-User": ""}}, "order-without-owner"),
    ],
)
def test_what_is_400(shop: Shop, sent: dict[str, Any], code: str) -> None:
    answer = shop.post("/covered/refused", **sent)
    assert (answer.status, answer.code) == (400, code)
    assert shop.orders("refused") == 0


def test_other_content_is_422_even_while_the_first_runs(shop: Shop) -> None:
    first: list[Answer] = []
    running = threading.Thread(
        target=lambda: first.append(shop.post("/covered/held/held", order_id="held-1"))
    )
    running.start()
    assert shop.post("/entered/held").status == 204  # returns when the view runs
    other = shop.post("/covered/held/held", b'{"n": 2}', order_id="held-1")
    assert (other.status, other.code) == (422, "order-id-reused")
    assert shop.post("/release/held").status == 204
    running.join()
    assert (first[0].status, shop.orders("held")) == (200, 1)
    assert shop.post("/covered/held/held", order_id="held-1").replayed
    assert shop.post("/covered/held/held", b'{"n": 2}', order_id="held-1").status == 422


def test_whoever_waits_is_one_of_so_many(shop: Shop) -> None:
    answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()

    def buy() -> None:
        answers.put(shop.post("/covered/held/many", order_id="many-1"))

    threads = [threading.Thread(target=buy) for _ in range(1 + MOST_WAITERS + 1)]
    for thread in threads:
        thread.start()
    first = answers.get(timeout=60)
    assert shop.post("/release/many").status == 204
    for thread in threads:
        thread.join()
    assert (first.status, first.code) == (503, "order-waiting-room-full")
    assert int(first.headers["retry-after"]) >= 1
    rest = [answers.get() for _ in threads[1:]]
    assert {answer.status for answer in rest} == {200}
    assert shop.orders("many") == 1


def test_users_and_routes_have_ids_of_their_own(shop: Shop) -> None:
    for headers in ({}, {"X-User": "bob"}, {"X-User": "", "Authorization": "Bearer b"}):
        assert not shop.post("/covered/two", order_id="two-1", headers=headers).replayed
    assert not shop.post("/covered/nested", order_id="two-1").replayed
    assert shop.post("/covered/two", order_id="two-1", headers={"X-User": "bob"}).replayed
    assert shop.orders("two") == 6


def test_tenants_have_ids_of_their_own(shop: Shop) -> None:
    answers = [
        shop.post("/covered/late", order_id="tenants", headers={"X-Part": part}) for part in "aba"
    ]
    assert [answer.replayed for answer in answers] == [False, False, True]


def test_what_the_same_form_is(shop: Shop) -> None:
    """Whatever its boundary and its CSRF token are."""

    def send(boundary: str, token: str, name: str, content: str) -> Answer:
        parts = [
            f'name="csrf_token"\r\n\r\n{token}',
            f'name="file"; filename="{name}"\r\n\r\n{content}',
        ]
        lines = [f"--{boundary}\r\nContent-Disposition: form-data; {part}\r\n" for part in parts]
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        body = f"{''.join(lines)}--{boundary}--\r\n".encode()
        return shop.post("/covered/late", body, order_id="form", headers=headers)

    assert send("b1", "x", "a.txt", "one").status == 200
    assert send("b2", "y", "a.txt", "one").replayed
    assert send("b1", "x", "b.txt", "one").status == 422
    assert send("b1", "x", "a.txt", "two").status == 422


def test_an_id_in_the_body(shop: Shop) -> None:
    body = b'{"order_id": 17}'
    answers = [shop.post("/covered/undone", body) for _ in range(2)]
    assert [answer.replayed for answer in answers] == [False, True]


@pytest.mark.parametrize("status", [400, 404, 410, 422])
def test_a_refusal_is_kept(shop: Shop, status: int) -> None:
    path = f"/covered/aborts?status={status}"
    assert shop.post(path).status == 400  # no ID; the server is up, and its tables are there
    before = shop.orders("aborts")
    answers = [shop.post(path, order_id=f"aborts-{status}") for _ in range(2)]
    assert [(answer.status, answer.replayed) for answer in answers] == [
        (status, False),
        (status, True),
    ]
    assert shop.orders("aborts") == before


@pytest.mark.parametrize("status", [401, 403, 408, 409, 423, 429, 500, 503])
def test_what_another_try_may_overcome_is_not(shop: Shop, status: int) -> None:
    assert shop.post(f"/covered/aborts?status={status}").status == 400
    before = shop.orders("aborts")
    _runs_again(shop, f"/covered/aborts?status={status}", status)
    assert shop.orders("aborts") - before == (2 if status < 500 else 0)


@pytest.mark.parametrize("status", [409, 425, 503])
def test_what_another_try_may_overcome_is_not_if_it_is_returned(shop: Shop, status: int) -> None:
    """Of 425 Werkzeug has no exception."""
    assert shop.post(f"/covered/returns/{status}").status == 400
    before = shop.orders("returns")
    _runs_again(shop, f"/covered/returns/{status}", status)
    assert shop.orders("returns") - before == (2 if status < 500 else 0)


def _runs_again(shop: Shop, path: str, status: int) -> None:
    for _ in range(2):
        answer = shop.post(path, order_id=f"again-{status}")
        assert (answer.status, answer.replayed) == (status, False)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_request_is_413(shop: Shop, chunked: bool) -> None:
    body = b"x" * (LARGEST_REQUEST + 1)
    assert shop.post("/covered/two", body, order_id="large", chunked=chunked).status == 413


def test_one_slow_client_holds_up_nobody_else(shop: Shop) -> None:
    """Neither orders nor other requests, each of which would wait for it for ever."""
    with stalled(shop.port, "/covered/one"):
        answers = [shop.post("/covered/one", order_id=f"beside-{n}") for n in range(5)]
        assert [answer.status for answer in answers] == [201] * 5
        assert shop.post("/covered/one").code == "order-id-missing"


def test_a_chunked_request_is_the_same_request(shop: Shop) -> None:
    answers = [
        shop.post("/covered/late", order_id="chunked", chunked=chunked) for chunked in (True, False)
    ]
    assert [answer.replayed for answer in answers] == [False, True]


@pytest.mark.parametrize("path", ["/covered/streams", "/covered/large"])
def test_an_answer_that_is_not_kept(shop: Shop, path: str) -> None:
    first, again = [shop.post(path, order_id="not-kept") for _ in range(2)]
    assert first.status == 200
    if path == "/covered/large":
        assert len(first.body) == LARGEST_RESPONSE + 1
    assert (again.status, again.code) == (409, "order-completed")
    assert again.headers["location"] == "/here"


def test_the_store_is_down(shop: Shop) -> None:
    answer = shop.post("/covered/late", order_id="down", headers={"X-Down": "1"})
    assert (answer.status, answer.code) == (503, "order-store-unavailable")
    assert "retry-after" in answer.headers
    assert shop.post("/covered/late", order_id="down").replayed is False


def test_an_expired_record_is_none(shop: Shop) -> None:
    for expected in (False, True):
        assert shop.post("/covered/late", order_id="expired").replayed is expected
    shop.change("expired", "expires", 1)
    for expected in (False, True):
        assert shop.post("/covered/late", order_id="expired").replayed is expected


def test_a_record_of_a_newer_release_is_no_second_run(shop: Shop) -> None:
    assert shop.post("/covered/late", order_id="newer").status == 200
    shop.change("newer", "version", 99)
    answer = shop.post("/covered/late", order_id="newer")
    assert (answer.status, answer.code) == (503, "order-record-unreadable")
