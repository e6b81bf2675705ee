"""``@lock_view`` of several names, and one that is held until the response is closed."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from flask import Flask, Response, request, send_file
from garbage import collected

import lockkit
from lockkit_flask import current_lease, lock_view, locks

if TYPE_CHECKING:
    from flask.typing import ResponseReturnValue

MakeApp = Callable[..., Flask]


@pytest.fixture
def app(make_app: MakeApp) -> Flask:
    return make_app(LOCKKIT_VIEWS={"TIMEOUT": 0})


def held(app: Flask, name: str) -> bool:
    with app.app_context():
        return locks["default"].inspect(name) is not None


class TestSeveralNames:
    @pytest.fixture(autouse=True)
    def view(self, app: Flask) -> None:
        @app.post("/move/<a>/<b>")
        @lock_view("stock:{a}", "stock:{b}", lambda a, b: "moves")
        def move(a: str, b: str) -> ResponseReturnValue:
            leases = current_lease()
            leases.check()
            return {name: leases[name].fencing_token for name in leases.names}

    def test_all_are_held_while_it_runs(self, app: Flask) -> None:
        tokens = app.test_client().post("/move/2/1").json
        assert sorted(tokens) == ["moves", "stock:1", "stock:2"]
        assert not any(held(app, name) for name in tokens)

    @pytest.mark.parametrize("busy", ["moves", "stock:1", "stock:2"])
    def test_one_that_is_busy_leaves_none(self, app: Flask, busy: str) -> None:
        with app.app_context(), locks["default"].lock(busy):
            assert app.test_client().post("/move/1/2").status_code == 423
            others = {"moves", "stock:1", "stock:2"} - {busy}
            assert not any(held(app, name) for name in others)

    def test_the_same_name_twice_is_locked_once(self, app: Flask) -> None:
        assert sorted(app.test_client().post("/move/1/1").json) == ["moves", "stock:1"]


class TestUntilTheResponseIsClosed:
    @pytest.fixture(autouse=True)
    def view(self, app: Flask) -> None:
        @app.get("/export/<sku>")
        @lock_view("stock:{sku}", hold="response")
        def export(sku: str) -> ResponseReturnValue:
            lease = current_lease()
            if request.args.get("fail"):
                raise ZeroDivisionError
            if request.args.get("file"):
                return send_file(io.BytesIO(b"row"), mimetype="text/plain")
            if request.args.get("page"):
                return "row"
            return Response(rows(lease))

    def test_a_streaming_body(self, app: Flask) -> None:
        response = app.test_client().get("/export/1")
        assert next(response.response) == b"row"
        assert held(app, "stock:1")
        assert app.test_client().get("/export/1").status_code == 423
        response.close()
        assert not held(app, "stock:1")

    @pytest.mark.parametrize("kind", ["reentrant", "write"])
    def test_whoever_runs_next_in_its_thread_is_somebody_else(self, app: Flask, kind: str) -> None:
        @app.get("/entered")
        @lock_view("entered", kind=kind, hold="response")
        def entered() -> ResponseReturnValue:
            return Response(iter(["row"]))

        first = app.test_client().get("/entered")
        assert app.test_client().get("/entered").status_code == 423
        first.close()
        assert not held(app, "entered")

    @pytest.mark.parametrize("query", ["page=1", "file=1"])
    @pytest.mark.parametrize("method", ["GET", "HEAD"])
    def test_every_other_body(self, app: Flask, query: str, method: str) -> None:
        response = app.test_client().open(f"/export/1?{query}", method=method)
        assert held(app, "stock:1")
        response.close()
        assert not held(app, "stock:1")

    def test_a_view_that_fails(self, app: Flask) -> None:
        app.config["PROPAGATE_EXCEPTIONS"] = False
        assert app.test_client().get("/export/1?fail=1").status_code == 500
        assert not held(app, "stock:1")

    def test_an_answer_that_takes_its_place(self, app: Flask) -> None:
        """Nobody closes a response that was thrown away."""

        @app.after_request
        def replace(_: Response) -> Response:
            return Response("another")

        assert app.test_client().get("/export/1?page=1").text == "another"
        collected()
        assert not held(app, "stock:1")


def rows(lease: lockkit.Lease) -> Iterator[str]:
    while True:
        lease.check()
        yield "row"
