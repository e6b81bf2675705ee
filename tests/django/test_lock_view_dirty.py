"""A lock inside ATOMIC_REQUESTS does not commit what was changed before it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connections
from django.test import Client, override_settings
from django_project.dirty import QUERIES
from django_project.shop.models import Sale

from lockkit_django import OpenTransaction, locks

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def project(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    settings = {"default": "memory://"}
    with override_settings(ROOT_URLCONF="django_project.dirty", LOCKKIT=settings):
        yield


@pytest.mark.parametrize(
    "what",
    [
        "inserts",
        "updates",
        "locks-rows",
        "cte-writes",
        "in-savepoint",
        "pragma-writes",
        "comment-writes",
    ],
)
def test_what_was_changed_before_the_lock_is_not_committed_by_it(what: str) -> None:
    with pytest.raises(OpenTransaction, match="non_atomic_requests"):
        Client().post(f"/dirty/{what}")
    assert Sale.objects.count() == 0
    assert not list(locks["default"].holders())


@pytest.mark.parametrize(
    "what", ["reads", "cte-reads", *(f"query-{number}" for number in range(len(QUERIES)))]
)
def test_who_has_only_read_gets_the_lock(what: str) -> None:
    for _ in range(2):
        assert Client().post(f"/dirty/{what}").content == b"True"
    assert Sale.objects.count() == 2


def test_the_remedy_of_the_message() -> None:
    assert Client().post("/exempt/inserts").content == b"True"
    assert Sale.objects.count() == 2
