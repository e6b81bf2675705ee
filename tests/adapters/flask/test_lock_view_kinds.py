"""``@lock_view(kind=…)``: views that share a name, or enter again what they hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from flask import Flask

from lockkit.model.errors import ConfigurationError
from lockkit_flask import current_lease, lock_view, locks

if TYPE_CHECKING:
    from flask.typing import ResponseReturnValue


@pytest.fixture
def app(make_app: Callable[..., Flask]) -> Flask:
    app = make_app(LOCKKIT_VIEWS={"TIMEOUT": 0})

    def state(*_: str) -> ResponseReturnValue:
        lease = current_lease()
        return {"shared": lease.shared}

    for kind in ("read", "write", "reentrant"):
        app.add_url_rule(f"/{kind}", kind, lock_view("catalogue", kind=kind)(state))
    app.add_url_rule("/permit", "permit", lock_view("gateway", kind="semaphore", permits=2)(state))

    @app.get("/both")
    @lock_view("catalogue", "prices", kind="read")
    def both() -> ResponseReturnValue:
        leases = current_lease()
        return [leases[name].shared for name in leases.names]

    return app


def status(app: Flask, path: str) -> int:
    return app.test_client().get(path).status_code


def test_readers_read_together_and_a_writer_is_alone(app: Flask) -> None:
    with app.app_context():
        catalogue = locks["default"].rwlock("catalogue", timeout=0)
        with catalogue.read():
            assert app.test_client().get("/read").json == {"shared": True}
            assert app.test_client().get("/both").json == [True, True]
        with catalogue.read(), locks["default"].rwlock("prices", owner="else").write():
            assert status(app, "/both") == 423
        with locks["default"].rwlock("catalogue", timeout=0, owner="else").read():
            assert status(app, "/write") == 423
    assert app.test_client().get("/write").json == {"shared": False}


def test_one_more_than_the_permits_is_busy(app: Flask) -> None:
    with app.app_context():
        gateway = locks["default"].semaphore("gateway", 2, timeout=0)
        with gateway:
            assert app.test_client().get("/permit").json == {"shared": True}
            with gateway:
                assert status(app, "/permit") == 423


def test_a_reentrant_view_is_entered_by_whoever_holds_it(app: Flask) -> None:
    with app.app_context(), locks["default"].lock("catalogue", reentrant=True):
        assert status(app, "/reentrant") == 200


@pytest.mark.parametrize(
    "wrong",
    [{"kind": "mutexx"}, {"kind": "semaphore"}, {"kind": "semaphore", "permits": 0},
     {"permits": 2}, {"kind": "read", "permits": 2}],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_at_import(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"kind|permits"):
        lock_view("catalogue", **wrong)
