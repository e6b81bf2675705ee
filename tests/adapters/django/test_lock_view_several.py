"""``@lock_view`` of several names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client, override_settings
from django.urls import path
from django_project.shop.models import Sale

from lockkit.leases.lease import BaseLease
from lockkit.leases.lock import BaseLock
from lockkit.model.types import Granted
from lockkit_django import lock_view, locks

pytestmark = pytest.mark.django_db(transaction=True)

NAMES = ("stock:{a}", "stock:{b}")
BOTH = {"stock:1", "stock:2"}


@lock_view(*NAMES)
def move(request: HttpRequest, a: str, b: str) -> HttpResponse:
    Sale.objects.create(sku=a)
    lease: Any = request.lease  # type: ignore[attr-defined]
    lease.check()
    if request.GET.get("lose"):
        locks["default"].break_("stock:1", fence=lease["stock:1"].fencing_token)
        lease["stock:1"]._hold.lose()
    return JsonResponse({name: lease[name].fencing_token for name in lease})


@lock_view(*NAMES)
async def amove(request: HttpRequest, a: str, b: str) -> HttpResponse:
    lease: Any = request.lease  # type: ignore[attr-defined]
    lease.check()
    return JsonResponse({name: lease[name].fencing_token for name in lease})


urlpatterns = [
    path("move/<a>/<b>", move),
    path("amove/<a>/<b>", amove),
]


@pytest.fixture(autouse=True)
def urls() -> Iterator[None]:
    shared = {"default": "memory://several"}  # by the blocking and the asyncio client
    with override_settings(ROOT_URLCONF=__name__, LOCKKIT=shared, LOCKKIT_VIEWS={"TIMEOUT": 0}):
        yield


@pytest.fixture
def lost_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """When stock:2 is granted, the lease on stock:1 is lost."""
    leased, taken = BaseLock._leased, list[BaseLease]()

    def lease_of(lock: BaseLock[Any], granted: Granted) -> BaseLease:
        taken.append(leased(lock, granted))
        if lock.name == "stock:2":
            locks["default"].break_("stock:1", fence=taken[0].fencing_token)
            taken[0]._hold.lose()
        return taken[-1]

    monkeypatch.setattr(BaseLock, "_leased", lease_of)


def held(name: str) -> bool:
    return locks["default"].inspect(name) is not None


def test_a_name_is_needed() -> None:
    from lockkit import ConfigurationError

    with pytest.raises(ConfigurationError):
        lock_view()


class TestSeveralNames:
    @pytest.mark.parametrize("url", ["/move/2/1", "/amove/1/2"])
    def test_all_are_held_while_it_runs(self, url: str) -> None:
        assert set(Client().post(url).json()) == BOTH
        assert not any(map(held, BOTH))

    @pytest.mark.parametrize("url", ["/move/2/1", "/amove/1/2"])
    @pytest.mark.parametrize("busy", sorted(BOTH))
    def test_one_that_is_busy_leaves_none(self, url: str, busy: str) -> None:
        with locks["default"].lock(busy):
            assert Client().post(url).status_code == 423
            assert not any(map(held, BOTH - {busy}))

    def test_the_same_name_twice_is_locked_once(self) -> None:
        assert set(Client().post("/move/1/1").json()) == {"stock:1"}

    def test_one_that_is_lost_rolls_all_back(self, atomic_requests: None) -> None:
        assert Client().post("/move/1/2?lose=1").status_code == 503
        assert not Sale.objects.exists()
        assert not any(map(held, BOTH))

    @pytest.mark.usefixtures("lost_meanwhile")
    @pytest.mark.parametrize("url", ["/move/2/1", "/amove/1/2"])
    def test_one_that_is_lost_before_all_are_held_leaves_none(self, url: str) -> None:
        """The view does not run."""
        refused = Client().post(url, headers={"Accept": "application/json"})
        assert (refused.status_code, refused.json()["code"]) == (503, "lock-lease-lost")
        assert not Sale.objects.exists()
        assert not any(map(held, BOTH))
