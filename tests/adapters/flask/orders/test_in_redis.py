"""STORE = "redis": orders whose effects are in no database of the app."""

from __future__ import annotations

import multiprocessing
import threading
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any

import pytest
from flask import abort, redirect
from flask_project.claims import create_app, die, pay
from werkzeug.exceptions import HTTPException

import lockkit
from lockkit.orders import Orders
from lockkit.orders.redis_records import orphans, resolve
from lockkit_flask import current_lease, idempotent, lock_view, locks, on_commit, order_orphaned
from lockkit_flask.state import app_locks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from flask import Flask, Response
    from flask.typing import ResponseReturnValue
    from werkzeug.test import TestResponse

    from lockkit.model.types import LockInfo

A_1 = {"X-User": "alice", "X-Order-ID": "A-1"}
RECOVER = "flask_project.claims.recover"


@pytest.fixture
def make_shop(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Flask]]:
    monkeypatch.delenv("LOCKKIT_URL", raising=False)
    made: list[Flask] = []

    def make(**orders: Any) -> Flask:
        made.append(create_app(tmp_path / "paid", redis_url, **orders))
        return made[-1]

    yield make
    for app in made:
        app_locks(app).close()


@pytest.fixture
def shop(make_shop: Callable[..., Flask]) -> Flask:
    return make_shop()


def post(app: Flask, path: str, **headers: str) -> TestResponse:
    return app.test_client().post(path, headers={**A_1, **headers})


def effects(app: Flask) -> int:
    paid: Path = app.config["PAID"]
    return len(paid.read_text().splitlines()) if paid.exists() else 0


def orphans_of(app: Flask) -> list[LockInfo]:
    return list(orphans(app_locks(app)["default"]))


def nothing_is_held(app: Flask) -> bool:
    with app.app_context():
        return not list(locks["default"].holders())


def test_a_redis_that_others_may_use_needs_a_namespace(make_shop: Callable[..., Flask]) -> None:
    with pytest.raises(lockkit.ConfigurationError, match=r"'NAMESPACE'.*shop-production"):
        make_shop(NAMESPACE="")


@pytest.mark.parametrize(
    ("path", "status"),
    [("/answers", 201), ("/answers", 302), ("/answers", 404), ("/aborts", 410), ("/refuses", 422)],
)
def test_an_answer_is_replayed(shop: Flask, path: str, status: int) -> None:
    first, second = [post(shop, path, **{"X-Status": str(status)}) for _ in range(2)]
    assert (first.status_code, second.status_code) == (status, status)
    assert second.headers["Idempotent-Replayed"] == "true"
    assert second.data == first.data
    assert second.headers.get("Location") == first.headers.get("Location")
    assert "Set-Cookie" not in second.headers
    assert effects(shop) == 1
    assert nothing_is_held(shop)
    assert not orphans_of(shop)


@pytest.mark.parametrize(
    ("path", "status"),
    [("/aborts", 401), ("/aborts", 409), ("/aborts", 503)],
)
def test_a_view_that_says_so_runs_again(shop: Flask, path: str, status: int) -> None:
    for _ in range(2):
        assert post(shop, path, **{"X-Status": str(status)}).status_code == status
    assert post(shop, path, **{"X-Status": "410"}).status_code == 410
    assert effects(shop) == 3
    assert not orphans_of(shop)


def test_an_exception_leaves_an_orphan_which_blocks(shop: Flask) -> None:
    told: list[str] = []

    def receive(_: Any, *, order_id: str, **__: object) -> None:
        told.append(order_id)

    order_orphaned.connect(receive, shop)
    assert post(shop, "/raises").status_code == 500
    again = post(shop, "/raises")
    assert (again.status_code, again.json["code"]) == (409, "order-orphaned")
    assert effects(shop) == 1
    assert told == ["A-1"]
    assert len(orphans_of(shop)) == 1
    assert nothing_is_held(shop)


@pytest.mark.parametrize("status", [401, 403, 409, 429, 500])
def test_an_error_handler_does_not_know_that_nothing_has_happened(shop: Flask, status: int) -> None:
    """A payment that timed out may be made, whatever the client is told of it."""
    assert post(shop, "/refuses", **{"X-Status": str(status)}).status_code == status
    assert post(shop, "/refuses").json["code"] == "order-orphaned"
    assert effects(shop) == 1


@pytest.mark.parametrize(("made", "told"), [(200, 503), (201, 503), (302, 302)])
def test_a_success_that_an_error_handler_makes_leaves_an_orphan(
    shop: Flask, made: int, told: int, caplog: pytest.LogCaptureFixture
) -> None:
    shop.register_error_handler(RuntimeError, lambda _: ("thanks", made))
    first, again = (post(shop, "/raises") for _ in range(2))
    assert first.status_code == told
    if told == 503:
        assert first.json["code"] == "order-outcome-unknown"
    assert (again.status_code, again.json["code"]) == (409, "order-orphaned")
    assert effects(shop) == 1
    assert f"makes {made} of it" in caplog.text


@pytest.mark.parametrize("status", [409, 503])
def test_an_abort_that_says_that_nothing_has_happened_does_so_on_any_page(
    shop: Flask, status: int
) -> None:
    shop.register_error_handler(HTTPException, lambda _: "please come back")
    answers = [post(shop, "/aborts", **{"X-Status": str(status)}) for _ in range(2)]
    assert [(each.status_code, each.text) for each in answers] == [(200, "please come back")] * 2
    assert effects(shop) == 2
    assert not orphans_of(shop)


def test_an_abort_that_is_an_answer_is_replayed(shop: Flask) -> None:
    def pays() -> ResponseReturnValue:
        pay()
        return abort(redirect("/thanks"))

    shop.add_url_rule("/pays", view_func=pays, methods=["POST"])
    first, again = (post(shop, "/pays") for _ in range(2))
    assert (first.status_code, again.status_code, again.location) == (302, 302, "/thanks")
    assert again.headers["Idempotent-Replayed"] == "true"
    assert effects(shop) == 1


@pytest.mark.parametrize("how", ["raises", "raises once", "changes the status"])
def test_a_hook_after_the_view_does_not_have_it_run_again(shop: Flask, how: str) -> None:
    """The view has said how it ended. Nothing is undone by what becomes of the response later."""
    shop.config["PROPAGATE_EXCEPTIONS"] = False
    fails = iter("1" if how == "raises once" else "12345")

    @shop.after_request
    def fail(response: Response) -> Response:
        if response.status_code == 201 and next(fails, None):
            if how != "changes the status":
                raise RuntimeError
            response.status_code = 503
        return response

    answers = [post(shop, "/answers") for _ in range(3)]
    assert answers[0].status_code >= 500
    assert effects(shop) == 1
    assert not orphans_of(shop)
    if how == "raises once":
        assert [answer.status_code for answer in answers[1:]] == [201, 201]


@pytest.mark.parametrize("propagates", [False, True])
def test_a_hook_that_fails_whatever_the_answer_is_has_nothing_run_again(
    make_shop: Callable[..., Flask], propagates: bool
) -> None:
    """Flask runs it for the page of the error as well, and sends that without those before it."""
    shop = make_shop(ORPHANS="retry")
    shop.config["PROPAGATE_EXCEPTIONS"] = propagates

    @shop.after_request
    def fail(response: Response) -> Response:
        raise RuntimeError

    for _ in range(3):
        with suppress(RuntimeError):
            assert post(shop, "/answers").status_code == 500
        assert not orphans_of(shop)
        assert nothing_is_held(shop)
    assert effects(shop) == 1


def test_a_hook_that_always_fails_says_nothing_of_a_view_that_has_raised(shop: Flask) -> None:
    shop.config["PROPAGATE_EXCEPTIONS"] = False

    @shop.after_request
    def fail(response: Response) -> Response:
        raise RuntimeError

    for status in ("raises", "refuses"):
        assert post(shop, f"/{status}", **{"X-Status": "409", "X-Order-ID": status}).status_code
    assert len(orphans_of(shop)) == 2


def test_what_cannot_be_made_a_response_leaves_an_orphan(shop: Flask) -> None:
    def returns_nothing() -> None:
        pay()

    shop.config["PROPAGATE_EXCEPTIONS"] = False
    shop.add_url_rule("/nothing", view_func=returns_nothing, methods=["POST"])
    assert post(shop, "/nothing").status_code == 500
    assert post(shop, "/nothing").json["code"] == "order-orphaned"
    assert effects(shop) == 1


def test_an_exception_that_propagates_leaves_an_orphan(shop: Flask) -> None:
    shop.testing = True
    with pytest.raises(RuntimeError):
        post(shop, "/raises")
    assert len(orphans_of(shop)) == 1
    assert nothing_is_held(shop)


@pytest.mark.parametrize("done", [True, False])
def test_an_operator_resolves_an_orphan(shop: Flask, done: bool) -> None:
    post(shop, "/raises")
    (orphan,) = orphans_of(shop)
    assert resolve(app_locks(shop)["default"], orphan, done=done)
    again = post(shop, "/raises")
    if done:
        assert (again.status_code, again.json["code"]) == (409, "order-completed")
    assert effects(shop) == (1 if done else 2)


def test_a_killed_worker_leaves_an_orphan_and_retry_runs_it_again(
    make_shop: Callable[..., Flask], redis_url: str, tmp_path: Path
) -> None:
    child = multiprocessing.get_context("spawn").Process(
        target=die, args=[tmp_path / "paid", redis_url]
    )
    child.start()
    child.join()
    assert child.exitcode == -9
    shop, retrying = make_shop(WAIT=0), make_shop(ORPHANS="retry")
    assert post(shop, "/dies").status_code == 409  # its lease lives on
    release_all(shop)
    assert post(shop, "/dies").json["code"] == "order-orphaned"
    first, second = post(retrying, "/dies"), post(retrying, "/dies")
    assert first.text.endswith("orphan: True")
    assert (second.data, "Idempotent-Replayed" in second.headers) == (first.data, True)
    dead, alive = [int(line.split()[1]) for line in (tmp_path / "paid").read_text().splitlines()]
    assert dead < alive  # the fencing tokens


def release_all(app: Flask) -> None:
    """As if every lease had expired."""
    client = app_locks(app)["default"]
    for info in client.holders():
        assert info.fence is not None
        client.break_(info.name, fence=info.fence)


def test_the_app_may_know_what_became_of_an_orphan(make_shop: Callable[..., Flask]) -> None:
    shop = make_shop(RECOVER=RECOVER)
    assert post(shop, "/raises").status_code == 500
    assert post(shop, "/raises", **{"X-Unknown": "1"}).json["code"] == "order-orphaned"
    for headers in ({}, {"X-Unknown": "1"}):  # the second time it is stored
        answer = post(shop, "/raises", **headers)
        assert (answer.status_code, answer.text) == (201, "known: A-1")
        assert answer.headers["Idempotent-Replayed"] == "true"
    assert effects(shop) == 1
    assert not orphans_of(shop)


def test_the_app_may_know_what_was_too_large(make_shop: Callable[..., Flask]) -> None:
    shop = make_shop(RECOVER=RECOVER, MAX_RESPONSE=1)
    post(shop, "/answers")
    assert post(shop, "/answers").text == "known: A-1"
    unknown = post(shop, "/answers", **{"X-Unknown": "1"})
    assert (unknown.status_code, unknown.headers["Location"]) == (409, "/paid/1")


def test_a_busy_lock_of_the_view_is_no_answer_to_keep(shop: Flask) -> None:
    with shop.app_context(), locks["default"].lock("stock:42"):
        assert post(shop, "/locked").text == "busy"
    assert effects(shop) == 0
    assert not orphans_of(shop)
    first, second = post(shop, "/locked"), post(shop, "/locked")
    assert (second.data, "Idempotent-Replayed" in second.headers) == (first.data, True)
    assert effects(shop) == 1


def test_simultaneous_first_requests_are_one_order(shop: Flask) -> None:
    answers: list[TestResponse] = []
    start = threading.Barrier(6)

    def buy() -> None:
        start.wait()
        answers.append(post(shop, "/answers"))

    threads = [threading.Thread(target=buy) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.data for answer in answers}) == 1
    assert sum("Idempotent-Replayed" in answer.headers for answer in answers) == 5
    assert effects(shop) == 1


def test_the_store_is_down(shop: Flask) -> None:
    down = create_app(shop.config["PAID"], "redis://127.0.0.1:1/0")
    answer = post(down, "/answers")
    assert (answer.status_code, answer.json["code"]) == (503, "order-store-unavailable")
    assert effects(down) == 0
    app_locks(down).close()


def test_the_answer_cannot_be_stored(shop: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    """The effects are there: the client is told that it is not known, and nothing runs again."""
    found = app_locks(shop).orders
    assert found is not None

    def fail(*_: object) -> None:
        raise lockkit.BackendUnavailable("down")

    with monkeypatch.context() as broken:
        broken.setattr(found.records, "finish", fail)
        answer = post(shop, "/answers")
    assert (answer.status_code, answer.json["code"]) == (503, "order-outcome-unknown")
    assert post(shop, "/answers").json["code"] == "order-orphaned"
    assert effects(shop) == 1


def test_a_lost_lease_of_the_view_leaves_the_outcome_unknown(shop: Flask) -> None:
    @lock_view("stock")
    def lose() -> str:
        lease = current_lease()
        assert locks["default"].break_("stock", fence=lease.fencing_token)
        with suppress(lockkit.LeaseLost):
            lease.extend()
        return "paid"

    shop.add_url_rule("/lose", view_func=lose, methods=["POST"])
    answers = [post(shop, "/lose") for _ in range(2)]
    assert [(answer.status_code, answer.json["code"]) for answer in answers] == [
        (503, "order-outcome-unknown"),
        (409, "order-orphaned"),
    ]
    assert nothing_is_held(shop)


def test_a_record_of_a_newer_release_is_503_and_never_a_second_run(
    shop: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        ended = Orders.ended
        newer.setattr(Orders, "ended", lambda *args: ended(*args)._replace(version=99))
        post(shop, "/answers")
    answer = post(shop, "/answers")
    assert (answer.status_code, answer.json["code"]) == (503, "order-record-unreadable")
    assert effects(shop) == 1


def test_the_locks_must_be_in_redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCKKIT_URL", raising=False)
    with pytest.raises(lockkit.ConfigurationError, match="That needs redis://"):
        create_app(tmp_path / "paid", "memory://")
    with pytest.raises(lockkit.ConfigurationError, match="USING"):
        create_app(tmp_path / "paid", "redis://127.0.0.1:1/0", USING="other")


def test_a_database_of_one_view_is_an_error(shop: Flask) -> None:
    view = idempotent(using="other")(lambda: "ok")
    shop.add_url_rule("/wrong", view_func=view, endpoint="wrong", methods=["POST"])
    shop.testing = True
    with pytest.raises(lockkit.ConfigurationError, match="other"):
        post(shop, "/wrong")


def test_an_app_context_around_the_view_leaves_the_order_its_lease(shop: Flask) -> None:
    """A decorator above ``@idempotent`` may push one, whose end is not that of the request."""
    held: list[bool] = []
    ordered = idempotent(pay)

    @wraps(ordered)
    def pushes() -> Any:
        with shop.app_context():
            answer = ordered()
        held.append(not nothing_is_held(shop))
        return answer

    shop.add_url_rule("/pushes", view_func=pushes, methods=["POST"])
    first, again = post(shop, "/pushes"), post(shop, "/pushes")
    assert (first.status_code, again.data, held) == (200, first.data, [True, False])
    assert nothing_is_held(shop)


def test_on_commit_is_called_at_once(shop: Flask) -> None:
    """The view's own commits stay."""

    def buy() -> str:
        found: list[str] = []
        on_commit(lambda: found.append("called"))
        return str(found)

    shop.add_url_rule("/at-once", view_func=buy, methods=["POST"])
    assert post(shop, "/at-once").text == "['called']"
