"""``@lock_view(kind=…)``: views that share a name; sync and async."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.http import HttpRequest, JsonResponse
from django.test import Client, override_settings
from django.urls import path

from lockkit.model.errors import ConfigurationError
from lockkit_django import lock_view, locks

pytestmark = pytest.mark.django_db(transaction=True)


def shared(request: Any) -> JsonResponse:
    return JsonResponse({"shared": request.lease.shared})


async def ashared(request: HttpRequest) -> JsonResponse:
    return shared(request)


LOCKED: dict[str, dict[str, Any]] = {
    "read": {"kind": "read"},
    "write": {"kind": "write"},
    "permit": {"kind": "semaphore", "permits": 2},
}
urlpatterns = [
    path(prefix + name, lock_view("catalogue:" + prefix, **how)(view))
    for prefix, view in (("", shared), ("a", ashared))
    for name, how in LOCKED.items()
]


@pytest.fixture(autouse=True)
def project() -> Iterator[None]:
    settings = {"default": "memory://kinds"}
    with override_settings(ROOT_URLCONF=__name__, LOCKKIT=settings, LOCKKIT_VIEWS={"TIMEOUT": 0}):
        yield


@pytest.fixture(params=["", "a"], ids=["sync", "async"])
def prefix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_readers_read_together_and_a_writer_is_alone(prefix: str) -> None:
    catalogue = locks["default"].rwlock("catalogue:" + prefix, owner="else", timeout=0)
    with catalogue.read():
        assert Client().get(f"/{prefix}read").json() == {"shared": True}
        assert Client().get(f"/{prefix}write").status_code == 423
    with catalogue.write():
        assert Client().get(f"/{prefix}read").status_code == 423
    assert Client().get(f"/{prefix}write").json() == {"shared": False}


def test_one_more_than_the_permits_is_busy(prefix: str) -> None:
    gateway = locks["default"].semaphore("catalogue:" + prefix, 2, timeout=0)
    with gateway:
        assert Client().get(f"/{prefix}permit").json() == {"shared": True}
        with gateway:
            assert Client().get(f"/{prefix}permit").status_code == 423


def test_what_makes_no_sense_is_refused_at_import() -> None:
    with pytest.raises(ConfigurationError, match="kind"):
        lock_view("catalogue", kind="reader")
