"""``@lock_view`` of several names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from flask import Flask

from lockkit.leases.lease import BaseLease
from lockkit.leases.lock import BaseLock
from lockkit.model.types import Granted
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

    def test_one_that_is_lost_before_all_are_held_leaves_none(
        self, app: Flask, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The view does not run: it would have an answer of its own."""
        leased, taken = BaseLock._leased, list[BaseLease]()

        def lease_of(lock: BaseLock[Any], granted: Granted) -> BaseLease:
            taken.append(leased(lock, granted))
            if lock.name == "stock:2":
                locks["default"].break_("stock:1", fence=taken[-2].fencing_token)
                taken[-2]._hold.lose()
            return taken[-1]

        with monkeypatch.context() as patched:
            patched.setattr(BaseLock, "_leased", lease_of)
            refused = app.test_client().post("/move/1/2")
        assert refused.status_code == 503
        assert refused.json["code"] == "lock-lease-lost"
        assert not any(held(app, name) for name in ("moves", "stock:1", "stock:2"))
