"""A ``lock_view`` inside another: no COMMIT under a lost lease, and no 503 over what has stayed."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django_project.shop.models import Sale

from lockkit.model.errors import LeaseLost
from lockkit_django import lock_view, locks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("atomic_requests")]


class Views:
    """``loses``: of which lease the loss becomes known, and when."""

    def __init__(self, loses: str) -> None:
        self.loses = loses
        self.leases: dict[str, Any] = {}

    def outer(self, request: HttpRequest) -> HttpResponse:
        self.leases["outer"] = request.lease  # type: ignore[attr-defined]
        response: HttpResponse = self.middle(request)
        self.known("outer after middle")
        return response

    def middle(self, request: HttpRequest) -> HttpResponse:
        self.leases["middle"] = request.lease  # type: ignore[attr-defined]
        response: HttpResponse = self.inner(request)
        self.known("middle after inner")
        return response

    def inner(self, request: HttpRequest) -> HttpResponse:
        self.leases["inner"] = request.lease  # type: ignore[attr-defined]
        Sale.objects.create(sku="x")
        for name in self.leases:
            self.known(f"{name} in inner")
        return HttpResponse("sold")

    def known(self, what: str) -> None:
        if what == self.loses:
            lease = self.leases[what.partition(" ")[0]]
            assert locks["default"].break_(lease.name, fence=lease.fencing_token)
            with suppress(LeaseLost):
                lease.extend()

    def post(self, exempt: str = "") -> HttpResponse:
        for name in ("inner", "middle", "outer"):
            view = getattr(self, name)
            if name == exempt:
                view = transaction.non_atomic_requests(lambda request, view=view: view(request))
            setattr(self, name, lock_view(name)(view))
        return self.outer(RequestFactory().post("/"))


@pytest.mark.parametrize("lost", ["outer", "middle", "inner"])
def test_whichever_is_lost_rolls_back(lost: str) -> None:
    response = Views(f"{lost} in inner").post()
    assert (response.status_code, response["Retry-After"]) == (503, "1")
    assert Sale.objects.count() == 0


@pytest.mark.parametrize("loses", ["outer after middle", "middle after inner"])
@pytest.mark.parametrize("exempt", ["", "inner"])
def test_what_an_inner_one_has_committed_is_no_503(loses: str, exempt: str) -> None:
    with pytest.raises(LeaseLost, match="an operator released it"):
        Views(loses).post(exempt)
    assert Sale.objects.count() == 1


def test_inside_one_that_is_exempt_a_lost_lease_rolls_back_and_is_503() -> None:
    assert Views("inner in inner").post(exempt="outer").status_code == 503
    assert Sale.objects.count() == 0


def test_one_that_keeps_its_leases_commits() -> None:
    assert Views("").post().status_code == 200
    assert Sale.objects.count() == 1
