"""Which client may see which answer, and the cost of hostile requests."""

from __future__ import annotations

import base64
import gc
import io
import logging
import pickletools
import threading
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from flask import Flask, request, session
from flask_project import Order, create_app, db, put
from garbage import collected

from lockkit.orders.rows import TABLE as TABLE_NAME
from lockkit_flask import locks, remember_guest
from lockkit_flask.state import app_locks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from flask.typing import ResponseReturnValue
    from werkzeug.test import TestResponse

ORDERS = {"ORDER_ID": ["header:X-Order-ID"], "PATHS": ["^/"], "WAIT": 50}
A_1 = {"X-User": "alice", "X-Order-ID": "A-1"}


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'shop.sqlite3'}"


@pytest.fixture
def shop(make_shop: Callable[..., Flask]) -> Flask:
    return with_views(make_shop())


def with_views(shop: Flask) -> Flask:
    shop.add_url_rule("/buy", view_func=buy, methods=["POST"])
    shop.add_url_rule("/form", view_func=lambda: remember_guest() or "")
    shop.add_url_rule("/forget", view_func=forget)
    return shop


def buy() -> ResponseReturnValue:
    order = put("bought")
    db.session.commit()
    return f"order {order.id} of {request.headers.get('X-User', 'somebody')}", 201


@pytest.mark.parametrize(
    ("who", "seconds"),
    [({"X-User": "alice"}, 86400), ({"Authorization": "made up"}, 3600), ({}, 3600)],
    ids=["user", "token", "session"],
)
def test_little_is_kept_and_not_for_long_of_owners_that_no_login_vouches_for(
    make_shop: Callable[..., Flask], who: dict[str, str], seconds: int
) -> None:
    shop = with_views(make_shop(LOCKKIT_ORDERS=ORDERS))
    large = b"x" * (16 * 1024 + 1)
    shop.add_url_rule("/large", "large", lambda: large, methods=["POST"])
    client = shop.test_client()
    client.get("/form")
    sent = {**who, "X-Order-ID": "A-1"}
    assert [client.post("/buy", headers=sent).status_code for _ in range(2)] == [201, 201]
    with shop.app_context():
        table = db.metadata.tables[TABLE_NAME]
        lived = db.session.execute(sa.select(table.c.expires - table.c.created)).scalar_one()
    assert seconds - 60 < lived / 1_000_000 < seconds + 60
    again = [client.post("/large", headers={**sent, "X-Order-ID": "A-2"}) for _ in range(2)][1]
    assert again.status_code == (200 if "X-User" in who else 409)


def forget() -> str:
    session.clear()
    return ""


def post(app: Flask, path: str = "/buy", **headers: str) -> TestResponse:
    return app.test_client().post(path, headers={**A_1, **headers})


def bought(app: Flask) -> int:
    with app.app_context():
        query = sa.select(sa.func.count()).select_from(Order)
        return int(db.session.execute(query).scalar_one())


def rows(app: Flask) -> list[dict[str, Any]]:
    with app.app_context():
        found = db.session.execute(sa.select(db.metadata.tables[TABLE_NAME])).mappings()
        return [dict(row) for row in found]


def replayed(response: TestResponse) -> bool:
    return "Idempotent-Replayed" in response.headers


CLIENTS: dict[str, dict[str, str]] = {
    "a user": {"X-User": "alice"},
    "another user": {"X-User": "bob"},
    "a user called like a token": {"X-User": "Bearer alice"},
    "a token": {"X-User": "", "Authorization": "Bearer alice"},
    "another token": {"X-User": "", "Authorization": "Bearer bob"},
    "a password": {
        "X-User": "",
        "Authorization": "Basic " + base64.b64encode(b"alice:x").decode(),
    },
}


def test_no_client_gets_what_another_was_answered(shop: Flask) -> None:
    """Two guests besides; all with the same order ID, which thus is pre-claimed for all but one."""
    first: list[bytes] = []
    for headers in CLIENTS.values():
        answer = post(shop, **headers)
        assert (answer.status_code, replayed(answer)) == (201, False)
        first.append(answer.data)
    guests = [shop.test_client(), shop.test_client()]
    for guest in guests:
        guest.get("/form")
        first.append(guest.post("/buy", headers={"X-Order-ID": "A-1"}).data)
    assert len(set(first)) == len(first) == bought(shop)
    again = [post(shop, **headers) for headers in CLIENTS.values()]
    again += [guest.post("/buy", headers={"X-Order-ID": "A-1"}) for guest in guests]
    assert [answer.data for answer in again] == first
    assert all(map(replayed, again))


def test_another_users_id_and_an_unused_one_look_the_same(shop: Flask) -> None:
    post(shop)
    statements: list[str] = []

    def note(*args: Any) -> None:
        statements.append(args[2].partition(" ")[0])

    def answer_and_cost(order_id: str) -> tuple[Any, ...]:
        statements.clear()
        answer = post(shop, "/aborts", **{"X-User": "mallory", "X-Order-ID": order_id})
        headers = sorted(name for name, _ in answer.headers)
        return answer.status_code, headers, len(answer.data), list(statements)

    with shop.app_context():
        sa.event.listen(db.engine, "before_cursor_execute", note)
    post(shop, "/aborts", **{"X-Order-ID": "of-alice"})
    known, unused = answer_and_cost("of-alice"), answer_and_cost("of-nobody")
    assert known == unused
    assert known[0] == 410


def test_a_guest_keeps_his_order_while_his_session_lives(shop: Flask) -> None:
    guest = shop.test_client()
    guest.get("/form")
    headers = {"X-Order-ID": "A-1"}
    assert not replayed(guest.post("/buy", headers=headers))
    assert replayed(guest.post("/buy", headers=headers))
    guest.get("/forget")
    assert guest.post("/buy", headers=headers).status_code == 400
    guest.set_cookie("session", "eyJsb2Nra2l0X2d1ZXN0IjoiYSJ9.made-up.by-hand")
    assert guest.post("/buy", headers=headers).status_code == 400
    assert bought(shop) == 1


CANARY = "c4n4ry-5ecret"


def test_a_secret_of_the_request_is_kept_nowhere(
    shop: Flask, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    def answers() -> ResponseReturnValue:
        session["token"] = CANARY
        return "ok", {"Set-Cookie": f"a={CANARY}", "X-CSRF": CANARY, "Authorization": CANARY}

    shop.add_url_rule("/answers", view_func=answers, methods=["POST"])
    secret = {"Authorization": f"Bearer {CANARY}", "X-User": "", "Cookie": f"password={CANARY}"}
    data = {"password": CANARY, "csrf_token": CANARY}
    for _ in range(2):
        answer = shop.test_client().post(
            f"/answers?token={CANARY}", data=data, headers={**A_1, **secret}
        )
    assert replayed(answer)
    kept = repr(rows(shop)) + caplog.text + repr(app_locks(shop).orders)
    assert CANARY not in kept
    assert not any(_is_pickle(value) for row in rows(shop) for value in row.values())


def _is_pickle(value: object) -> bool:
    try:
        pickletools.dis(value if isinstance(value, bytes) else str(value).encode(), io.StringIO())
    except (ValueError, IndexError):
        return False
    return True


@pytest.mark.parametrize(
    "order_id",
    ["a\0b", "a\x7f", "\t", "' OR 1=1 --", '"', '"a" b', "é", "a" * 10_000, "{x}", "../../etc"],
)
def test_hostile_ids(shop: Flask, order_id: str) -> None:
    """Refused, or IDs like any other."""
    answers = [post(shop, **{"X-Order-ID": order_id}) for _ in range(2)]
    expected = 201 if order_id in ("' OR 1=1 --", "{x}", "../../etc") else 400
    assert [answer.status_code for answer in answers] == [expected, expected]
    assert bought(shop) == (expected == 201)


def test_two_headers_are_refused(shop: Flask) -> None:
    headers = [("X-User", "alice"), ("X-Order-ID", "A-1"), ("X-Order-ID", "A-2")]
    assert shop.test_client().post("/buy", headers=headers).status_code == 400


def test_duplicates_that_wait_are_capped(make_shop: Callable[..., Flask]) -> None:
    shop = make_shop(LOCKKIT_ORDERS={**ORDERS, "MAX_WAITERS": 1})
    inside, go_on = threading.Event(), threading.Event()

    def held() -> str:
        inside.set()
        assert go_on.wait(60)
        return "ok"

    shop.add_url_rule("/held", view_func=held, methods=["POST"])
    answers: list[TestResponse] = []
    first, second, third = [
        threading.Thread(target=lambda: answers.append(post(shop, "/held"))) for _ in range(3)
    ]
    first.start()
    assert inside.wait(60)
    second.start()
    third.start()  # one of the two waits
    while not answers:
        third.join(0.05)
        second.join(0.05)
    assert (answers[0].status_code, answers[0].json["code"]) == (503, "order-waiting-room-full")
    assert "Retry-After" in answers[0].headers
    go_on.set()
    for thread in (first, second, third):
        thread.join()
    assert [answer.status_code for answer in answers[1:]] == [200, 200]
    with shop.app_context():
        assert not list(locks["default"].holders())


def test_many_random_ids_leave_nothing_in_memory_and_expire(
    make_shop: Callable[..., Flask],
) -> None:
    shop = with_views(make_shop(LOCKKIT_ORDERS={**ORDERS, "TTL": 0.01}))
    client = shop.test_client()

    def objects_after(many: range) -> int:
        for number in many:
            client.post("/aborts", headers={**A_1, "X-Order-ID": f"random-{number}"})
        collected()
        return len(gc.get_objects())

    objects_after(range(300))  # some of the last ones are remembered
    before = objects_after(range(300, 350))
    assert objects_after(range(350, 550)) - before < 100  # less than one for two orders
    found = app_locks(shop).orders
    assert found is not None
    with shop.app_context():
        pruned = 0
        while pruned < 550:  # the last one has just begun to expire
            pruned += sum(found.records.prune(1000))
    assert pruned == 550
    assert rows(shop) == []


def test_nothing_runs_while_the_database_of_the_records_is_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("LOCKKIT_URL", raising=False)
    broken = create_app(
        SQLALCHEMY_DATABASE_URI=f"sqlite:///{tmp_path}/no/such/folder/shop.sqlite3",
        LOCKKIT_URL="memory://",
    )
    ran: list[str] = []
    broken.add_url_rule("/run", view_func=lambda: ran.append("") or "", methods=["POST"])
    answer = post(broken, "/run")
    assert (answer.status_code, answer.json["code"]) == (503, "order-store-unavailable")
    assert ran == []
