"""Orders: each takes effect once, and every duplicate gets the same answer."""

from __future__ import annotations

import multiprocessing
import secrets
import threading
import time
from contextlib import suppress
from functools import reduce, wraps
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from flask import (
    Flask,
    Request,
    Response,
    abort,
    after_this_request,
    g,
    request,
    session,
)
from flask.sessions import SessionInterface, SessionMixin
from flask_project import Order, User, create_app, db, die, put

import lockkit
from lockkit.orders.rows import TABLE as TABLE_NAME
from lockkit_flask import (
    LockKit,
    current_lease,
    current_order,
    idempotent,
    lock_view,
    locks,
    remember_guest,
)
from lockkit_flask.state import app_locks

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask.typing import ResponseReturnValue
    from werkzeug.test import TestResponse


ALICE = {"X-User": "alice", "X-Order-ID": "A-1"}
MEMORY = {"LOCKKIT_URL": "memory://"}


@pytest.fixture
def shop(make_shop: Callable[..., Flask]) -> Flask:
    return make_shop()


def post(app: Flask, path: str, **headers: str) -> TestResponse:
    return app.test_client().post(path, headers={**ALICE, **headers})


def orders(app: Flask, name: str) -> int:
    with app.app_context():
        query = sa.select(sa.func.count()).select_from(Order).where(Order.name == name)
        return int(db.session.execute(query).scalar_one())


def records(app: Flask) -> int:
    with app.app_context():
        query = sa.text(f"SELECT count(*) FROM {TABLE_NAME}")
        return int(db.session.execute(query).scalar_one())


def nothing_is_held(app: Flask) -> bool:
    with app.app_context():
        return not list(locks["default"].holders())


@pytest.mark.parametrize(
    ("view", "count"),
    [
        ("one", 1),
        ("two", 2),
        ("undone", 1),
        ("nested", 1),
        ("other_session", 2),
        ("late", 1),
        ("redirects", 1),
        ("coroutine", 1),
        ("locked", 1),
        ("class_view", 1),
    ],
)
def test_an_order_takes_effect_once_and_is_replayed(shop: Flask, view: str, count: int) -> None:
    first, second = post(shop, f"/{view}"), post(shop, f"/{view}")
    assert first.status_code < 400
    assert "Idempotent-Replayed" not in first.headers
    assert second.headers["Idempotent-Replayed"] == "true"
    assert (second.status_code, second.data) == (first.status_code, first.data)
    assert orders(shop, view) == count
    assert records(shop) == 1
    assert nothing_is_held(shop)


def test_only_harmless_headers_are_stored(shop: Flask) -> None:
    first, second = post(shop, "/one"), post(shop, "/one")
    assert "secret" in first.headers["Set-Cookie"]
    assert "Set-Cookie" not in second.headers
    assert "X-Other" not in second.headers
    assert second.headers["Location"] == first.headers["Location"]
    assert second.headers["X-Passed"] == "after_request"


def test_headers_that_guard_the_client_are_stored(shop: Flask) -> None:
    """Without them a safe download would be a page that runs scripts."""
    guards = [
        ("Cache-Control", "private, no-store"),
        ("Content-Disposition", "attachment; filename=invoice.html"),
        ("Content-Security-Policy", "sandbox"),
        ("Content-Security-Policy", "default-src 'none'"),
        ("Referrer-Policy", "no-referrer"),
        ("X-Content-Type-Options", "nosniff"),
        ("X-Frame-Options", "DENY"),
    ]

    def download() -> ResponseReturnValue:
        put("download")
        db.session.commit()
        return "<script></script>", 200, guards

    shop.add_url_rule("/download", view_func=download, methods=["POST"])
    answers = [post(shop, "/download") for _ in range(2)]
    assert answers[1].headers["Idempotent-Replayed"] == "true"
    for answer in answers:
        assert [pair for pair in answer.headers if pair[0] in dict(guards)] == guards


def test_what_steers_the_client_is_stored(shop: Flask) -> None:
    """An answer may have nothing else."""
    steering = {"HX-Redirect": "/thanks", "X-Inertia": "true", "Refresh": "0;url=/thanks"}
    shop.add_url_rule("/steers", view_func=lambda: ("", 204, steering), methods=["POST"])
    answers = [post(shop, "/steers") for _ in range(2)]
    assert answers[1].headers["Idempotent-Replayed"] == "true"
    for answer in answers:
        assert {name: answer.headers[name] for name in steering} == steering


@pytest.mark.parametrize("name", ["X-Accel-Redirect", "X-Sendfile", "x-sendfile"])
def test_a_body_that_the_server_in_front_sends_is_not_kept(shop: Flask, name: str) -> None:
    def sends() -> ResponseReturnValue:
        put("sends")
        db.session.commit()
        return "", 200, {name: "/protected/7.pdf", "Location": "/orders/7"}

    shop.add_url_rule("/sends", view_func=sends, methods=["POST"])
    first, second = (post(shop, "/sends") for _ in range(2))
    assert first.headers[name] == "/protected/7.pdf"
    assert (second.status_code, second.json["code"]) == (409, "order-completed")
    assert second.headers["Location"] == "/orders/7"
    assert name not in second.headers


@pytest.mark.parametrize(("view", "status"), [("refused", 404), ("aborts", 410)])
def test_a_refusal_is_stored_without_effects(shop: Flask, view: str, status: int) -> None:
    first, second = post(shop, f"/{view}"), post(shop, f"/{view}")
    assert (first.status_code, second.status_code) == (status, status)
    assert second.headers["Idempotent-Replayed"] == "true"
    assert second.data == first.data
    assert orders(shop, view) == 0


@pytest.mark.parametrize("path", ["/fails", "/returns_500", "/aborts?status=503"])
def test_what_may_go_better_next_time_is_rolled_back_and_runs_again(shop: Flask, path: str) -> None:
    for _ in range(2):
        response = post(shop, path)
        assert response.status_code in (500, 503)
        assert "Idempotent-Replayed" not in response.headers
    assert orders(shop, path[1:].partition("?")[0]) == 0
    assert records(shop) == 0
    assert nothing_is_held(shop)


def test_an_exception_that_propagates_is_rolled_back(
    shop: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = app_locks(shop)["default"].store
    release, in_use = backend.release, []

    def releasing(request: Any) -> Any:
        in_use.append(db.engine.pool.checkedout())  # type: ignore[attr-defined]
        return release(request)

    monkeypatch.setattr(backend, "release", releasing)
    shop.testing = True
    with pytest.raises(RuntimeError):
        post(shop, "/fails")
    assert in_use == [0]  # the transaction has ended when the lock is free
    assert (orders(shop, "fails"), records(shop)) == (0, 0)
    assert nothing_is_held(shop)


def test_changes_that_nobody_commits_are_an_error_and_no_stored_success(shop: Flask) -> None:
    assert post(shop, "/forgotten").status_code == 500
    assert (orders(shop, "forgotten"), records(shop)) == (0, 0)
    assert nothing_is_held(shop)


def test_an_error_handler_cannot_make_a_success_of_what_was_rolled_back(shop: Flask) -> None:
    assert post(shop, "/raises_own?status=302").status_code == 302  # to a login, say
    assert records(shop) == 0
    assert post(shop, "/raises_own?status=200&commit=1").status_code == 500
    assert (orders(shop, "raises_own"), records(shop)) == (0, 0)
    assert post(shop, "/raises_own?status=422").status_code == 422
    assert records(shop) == 1


def test_a_stream_is_not_replayable_and_says_where_the_order_is(shop: Flask) -> None:
    assert post(shop, "/streams").text == "ab"
    second = post(shop, "/streams")
    assert (second.status_code, second.headers["Location"]) == (409, "/here")
    assert orders(shop, "streams") == 1


def test_nobodys_order_is_refused_and_a_guests_is_not(shop: Flask) -> None:
    shop.add_url_rule("/form", view_func=lambda: remember_guest() or "")
    guest, other = shop.test_client(), shop.test_client()
    header = {"X-Order-ID": "A-1"}
    assert guest.post("/one", headers=header).status_code == 400
    for client in (guest, other):
        client.get("/form")
    assert guest.post("/one", headers=header).status_code == 201
    assert "Idempotent-Replayed" in guest.post("/one", headers=header).headers
    assert "Idempotent-Replayed" not in other.post("/one", headers=header).headers


class KeptSession(dict[str, Any], SessionMixin):
    sid = ""


class KeptSessions(SessionInterface):
    """On the server, as Flask-Session's: the client chooses the ID, and none is called new."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, Any]] = {}

    def open_session(self, app: Flask, request: Request) -> KeptSession:
        sid = request.cookies.get("session") or secrets.token_urlsafe(16)
        session = KeptSession(self.kept.get(sid, {}))
        session.sid = sid
        return session

    def save_session(self, app: Flask, session: Any, response: Response) -> None:
        if session:
            self.kept[session.sid] = dict(session)
            response.set_cookie("session", session.sid)


def test_a_session_owns_orders_when_the_server_has_kept_it(shop: Flask) -> None:
    shop.session_interface = KeptSessions()
    shop.add_url_rule("/basket", view_func=lambda: session.setdefault("basket", "b"))
    headers = {"X-Order-ID": "A-1"}
    client = shop.test_client()
    assert client.post("/one", headers=headers).status_code == 400
    client.set_cookie("session", "made-up-by-the-client")
    assert client.post("/one", headers=headers).status_code == 400
    client.get("/basket")
    answers = [client.post("/one", headers=headers) for _ in range(2)]
    assert ["Idempotent-Replayed" in answer.headers for answer in answers] == [False, True]
    assert orders(shop, "one") == 1


def test_hooks_of_blueprints_and_app_run_before_a_replay(shop: Flask) -> None:
    @shop.before_request
    def forbid() -> tuple[str, int] | None:
        return ("forbidden", 403) if request.headers.get("X-Forbid") else None

    assert post(shop, "/one").status_code == 201
    before = shop.config["CALLS"]
    assert post(shop, "/one", **{"X-Forbid": "1"}).status_code == 403
    assert post(shop, "/one").headers["Idempotent-Replayed"] == "true"
    assert shop.config["CALLS"] == before + 2


def test_a_session_that_has_read_before_joins_and_its_objects_stay(shop: Flask) -> None:
    with shop.app_context():
        db.session.add(User(id=1, name="alice"))
        db.session.commit()

    @shop.before_request
    def load() -> None:
        g.user = db.session.get(User, 1)

    assert post(shop, "/seen").text == "alice"
    assert post(shop, "/seen").headers["Idempotent-Replayed"] == "true"


def test_what_is_saved_after_a_hook_has_read_belongs_to_the_order(shop: Flask) -> None:
    @shop.before_request
    def read() -> None:
        db.session.execute(sa.select(User)).all()

    assert post(shop, "/returns_500").status_code == 500
    assert (orders(shop, "returns_500"), records(shop)) == (0, 0)
    assert post(shop, "/one").status_code == 201
    assert (orders(shop, "one"), records(shop)) == (1, 1)


def test_a_session_that_has_written_before_is_an_error(shop: Flask) -> None:
    @shop.before_request
    def write() -> None:
        db.session.execute(sa.insert(User).values(id=1, name="alice"))

    shop.testing = True
    with pytest.raises(lockkit.ConfigurationError, match="not committed"):
        post(shop, "/one")


def test_a_busy_lock_of_the_view_is_423_and_no_record(shop: Flask) -> None:
    with shop.app_context(), locks["default"].lock("stock:42"):
        for view in ("locked", "class_view"):
            assert post(shop, f"/{view}").status_code == 423
    assert records(shop) == 0
    assert post(shop, "/locked").status_code == 200
    assert nothing_is_held(shop)


def test_the_locks_are_released_after_the_commit(
    shop: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the instant of each release a second connection sees the order."""
    client = app_locks(shop)["default"]
    release, seen = client.store.release, []

    def releasing(request: Any) -> Any:
        with shop.app_context(), db.engine.connect() as other:
            query = sa.select(sa.func.count()).select_from(Order)
            seen.append(other.execute(query).scalar_one())
        return release(request)

    monkeypatch.setattr(client.store, "release", releasing)
    assert post(shop, "/locked").status_code == 200
    assert seen == [1, 1]  # the order's lock, and the view's


@pytest.mark.parametrize("ends", [lambda: "ok", lambda: abort(410)], ids=["ok", "refusal"])
def test_a_lost_lease_rolls_back(make_shop: Callable[..., Flask], ends: Callable[[], str]) -> None:
    shop = make_shop(LOCKKIT={"default": {"TTL": 0.3}})

    def lose() -> str:
        db.session.add(Order(name="lose"))
        db.session.commit()
        (lease,) = current_order.leases
        locks["default"].break_(lease.name, fence=lease.fencing_token)  # if it still lasts
        while not lease.lost:
            threading.Event().wait(0.01)
        return ends()

    shop.add_url_rule("/lose", view_func=lose, methods=["POST"])
    response = post(shop, "/lose")
    assert (response.status_code, "Retry-After" in response.headers) == (503, True)
    assert (orders(shop, "lose"), records(shop)) == (0, 0)


IN_EITHER_ORDER = pytest.mark.parametrize(
    "decorators",
    [[lock_view("stock")], [lock_view("stock"), idempotent], [idempotent, lock_view("stock")]],
    ids=["alone", "below", "above"],
)
"""Of a view's decorators, the lowest first."""


@IN_EITHER_ORDER
@pytest.mark.parametrize("checks", [False, True], ids=["returns", "checks"])
def test_a_lost_lease_of_the_view_rolls_back(
    make_shop: Callable[..., Flask], checks: bool, decorators: list[Any]
) -> None:
    shop = make_shop(LOCKKIT={"default": {"TTL": 0.3}}, PROPAGATE_EXCEPTIONS=True)

    def lose() -> str:
        db.session.add(Order(name="lose"))
        db.session.commit()
        lease = current_lease()
        locks["default"].break_("stock", fence=lease.fencing_token)
        while not lease.lost:
            threading.Event().wait(0.01)
        if checks:
            lease.check()
        return "ok"

    view = reduce(lambda below, decorator: decorator(below), decorators, lose)
    shop.add_url_rule("/lose", view_func=view, methods=["POST"])
    response = post(shop, "/lose")
    assert (response.status_code, response.json["code"]) == (503, "order-lease-lost")
    assert (orders(shop, "lose"), records(shop)) == (0, 0)


def pushing(app: Flask, view: Callable[[], ResponseReturnValue], then: Callable[[], None]) -> Any:
    """A decorator that pushes an app context around an order, and then does something else."""
    ordered = idempotent(view)

    @wraps(ordered)
    def pushes() -> ResponseReturnValue:
        with app.app_context():
            answer = ordered()
        then()
        return answer

    return pushes


def sell_pushed() -> ResponseReturnValue:
    put("pushed")
    db.session.commit()
    return "sold", 201


def test_a_lost_lease_rolls_back_though_its_app_context_has_ended(shop: Flask) -> None:
    def lose() -> None:
        (lease,) = current_order.leases
        assert locks["default"].break_(lease.name, fence=lease.fencing_token)
        with suppress(lockkit.LeaseLost):
            lease.extend()

    view = pushing(shop, sell_pushed, lose)
    shop.add_url_rule("/pushed", view_func=view, methods=["POST"])
    response = post(shop, "/pushed")
    assert (response.status_code, response.json["code"]) == (503, "order-lease-lost")
    assert (orders(shop, "pushed"), records(shop)) == (0, 0)


def wrap(response: Response) -> Response:
    response.set_data(f"[{response.get_data(as_text=True)}]")
    return response


def end(response: Response) -> Response:
    response.set_data(f"{response.get_data(as_text=True)}!")
    return response


def sell_and_end() -> ResponseReturnValue:
    after_this_request(end)
    return sell_pushed()


def test_what_a_hook_does_to_every_answer_is_done_once_to_each(shop: Flask) -> None:
    """It runs again at a replay. What the view itself wants is a part of its answer."""

    @shop.before_request
    def wrap_every_answer() -> None:
        after_this_request(wrap)

    shop.add_url_rule("/buy", view_func=sell_and_end, methods=["POST"])
    assert [post(shop, "/buy").text for _ in range(2)] == ["[sold!]", "[sold!]"]
    assert orders(shop, "pushed") == 1


def test_an_answer_in_place_of_the_views_has_the_headers_that_hooks_have_set(shop: Flask) -> None:
    """Such as those for CORS. The view's response is closed, as a server does it."""
    closed: list[str] = []

    @shop.after_request
    def guard(response: Response) -> Response:
        response.headers["Strict-Transport-Security"] = "max-age=60"
        response.headers["Cache-Control"] = "public"
        response.set_etag("of the body")
        return response

    def lose() -> Response:
        sell_pushed()
        current_order.leases[0].release()
        response = Response(iter(["sold"]), headers={"X-View": "1"})
        response.call_on_close(lambda: closed.append("closed"))
        return response

    shop.add_url_rule("/lose", view_func=lose, methods=["POST"])
    response = post(shop, "/lose")
    assert (response.status_code, response.json["code"]) == (503, "order-lease-lost")
    assert response.headers["Strict-Transport-Security"] == "max-age=60"
    assert response.headers["Cache-Control"] == "no-store"
    assert not {"X-View", "ETag"} & set(response.headers.keys())
    response.close()
    assert closed == ["closed"]


def test_a_lock_of_the_view_lasts_until_the_commit_though_its_app_context_has_ended(
    shop: Flask,
) -> None:
    held: list[str] = []

    def look() -> None:
        held.extend(info.name.partition(":")[0] for info in locks["default"].holders())

    view = pushing(shop, lock_view("stock")(sell_pushed), look)
    shop.add_url_rule("/pushed", view_func=view, methods=["POST"])
    assert post(shop, "/pushed").status_code == 201
    assert sorted(held) == ["order", "stock"]
    assert nothing_is_held(shop)


def test_the_lock_store_is_down(make_shop: Callable[..., Flask]) -> None:
    shop = make_shop(LOCKKIT_URL="redis://127.0.0.1:1/0")
    response = post(shop, "/one")
    assert (response.status_code, "Retry-After" in response.headers) == (503, True)
    assert orders(shop, "one") == 0


def test_the_table_of_the_records_is_missing(shop: Flask) -> None:
    with shop.app_context():
        db.session.execute(sa.text(f"DROP TABLE {TABLE_NAME}"))
        db.session.commit()
    shop.testing = True
    with pytest.raises(lockkit.ConfigurationError, match=r"LockKit\.create_tables"):
        post(shop, "/one")
    assert orders(shop, "one") == 0
    with shop.app_context():
        LockKit.create_tables()
        LockKit.create_tables()
    assert post(shop, "/one").status_code == 201


@pytest.mark.parametrize("days", [-3, 3])
def test_the_clock_of_the_database_says_what_has_expired(
    shop: Flask, days: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's says something else here, as that of another host might."""
    post(shop, "/one")
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + days * 86400)
    assert post(shop, "/one").headers["Idempotent-Replayed"] == "true"
    with shop.app_context():
        db.session.execute(sa.text(f"UPDATE {TABLE_NAME} SET expires = {int(right()) - 60}000000"))
        db.session.commit()
    assert "Idempotent-Replayed" not in post(shop, "/one").headers
    assert (orders(shop, "one"), records(shop)) == (2, 1)


def test_a_record_that_another_request_has_replaced_meanwhile_is_replayed(
    shop: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen the expired one; the lock was free again when the second asked for it."""
    post(shop, "/one")
    with shop.app_context():
        db.session.execute(sa.text(f"UPDATE {TABLE_NAME} SET expires = 1"))
        db.session.commit()
    found = app_locks(shop).orders
    assert found is not None
    find, looked = found.records.find, []

    def find_and_be_overtaken(key: str, *, fresh: bool) -> Any:
        record = find(key, fresh=fresh)
        looked.append(record)
        if len(looked) == 1:
            other = threading.Thread(target=post, args=(shop, "/one"))
            other.start()
            other.join()
        return record

    monkeypatch.setattr(found.records, "find", find_and_be_overtaken)
    assert post(shop, "/one").headers["Idempotent-Replayed"] == "true"
    assert (orders(shop, "one"), records(shop)) == (2, 1)


def test_simultaneous_first_requests_are_one_order(shop: Flask) -> None:
    responses: list[TestResponse] = []

    def buy() -> None:
        responses.append(post(shop, "/slow"))

    threads = [threading.Thread(target=buy) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {response.status_code for response in responses} == {200}
    assert sum("Idempotent-Replayed" in r.headers for r in responses) == 5
    assert orders(shop, "slow") == 1


def test_without_a_common_lock_the_unique_key_decides(
    make_shop: Callable[..., Flask],
) -> None:
    """Two apps whose lock stores do not know one another: what a lost lease looks like."""
    shops = [make_shop(), make_shop()]
    responses: list[TestResponse] = []
    start = threading.Barrier(2)

    def buy(shop: Flask) -> None:
        start.wait()
        responses.append(post(shop, "/slow"))

    threads = [threading.Thread(target=buy, args=[shop]) for shop in shops]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [response.status_code for response in responses] == [200, 200]
    assert sum("Idempotent-Replayed" in r.headers for r in responses) == 1
    assert orders(shops[0], "slow") == 1


def test_a_killed_worker_leaves_nothing_and_the_retry_runs(shop: Flask, database: str) -> None:
    child = multiprocessing.get_context("spawn").Process(target=die, args=[database])
    child.start()
    child.join()
    assert child.exitcode == -9
    assert (orders(shop, "dies"), records(shop)) == (0, 0)
    response = post(shop, "/dies")
    assert (response.text, "Idempotent-Replayed" in response.headers) == ("alive", False)
    assert orders(shop, "dies") == 1


def test_an_app_context_around_the_requests(shop: Flask) -> None:
    with shop.app_context():
        for _ in range(2):
            assert post(shop, "/one").status_code == 201
        assert orders(shop, "one") == 1
        assert nothing_is_held(shop)


def test_in_memory_databases_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCKKIT_URL", raising=False)
    shop = create_app(SQLALCHEMY_DATABASE_URI="sqlite://", **MEMORY)
    with shop.app_context():
        db.create_all()
    for _ in range(2):
        assert post(shop, "/two").status_code == 200
    assert orders(shop, "two") == 2
    with shop.app_context():
        for engine in db.engines.values():
            engine.dispose()
