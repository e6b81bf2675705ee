"""A lock inside ATOMIC_REQUESTS does not commit what was changed before it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from types import FrameType
from typing import Any

import pytest
from django.core.handlers.base import BaseHandler
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory, override_settings
from django.urls import ResolverMatch
from django.views import View
from django_project.dirty import BEFORE, OF_POSTGRESQL, READS, WRITES
from django_project.servers import KINDS, place
from django_project.shop.models import Sale
from orders_django import mysql

from lockkit.model.errors import LeaseLost
from lockkit_django import OpenTransaction, lock_view, locks

__all__ = ["mysql"]

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

SELL = """
CREATE OR REPLACE FUNCTION sell() RETURNS int LANGUAGE sql AS
    'INSERT INTO shop_sale (sku) VALUES (''before'') RETURNING 1'
"""


@pytest.fixture(params=KINDS)
def using(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The alias of a database with one sale; it alone has ATOMIC_REQUESTS."""
    with ExitStack() as stack:
        alias = stack.enter_context(place(request, Sale))
        monkeypatch.setitem(connections.settings[alias], "ATOMIC_REQUESTS", True)
        if request.param == "postgresql":
            with connections[alias].cursor() as cursor:
                cursor.execute(SELL)
        Sale.objects.using(alias).create(sku="first")
        urls = {"ROOT_URLCONF": "django_project.dirty", "LOCKKIT": {"default": "memory://"}}
        stack.enter_context(override_settings(**urls))
        yield alias


def skus(using: str) -> list[str]:
    return list(Sale.objects.using(using).order_by("pk").values_list("sku", flat=True))


def refused(url: str, why: str = "") -> None:
    with pytest.raises(OpenTransaction, match=f"{why}.*non_atomic_requests"):
        Client().post(url)
    assert not list(locks["default"].holders())


@pytest.mark.parametrize("what", WRITES)
def test_what_was_changed_before_the_lock_is_not_committed_by_it(what: str, using: str) -> None:
    refused(f"/dirty/{using}/{what}")
    assert skus(using) == ["first"]


@pytest.mark.parametrize("using", ["postgresql"], indirect=True)
@pytest.mark.parametrize("what", OF_POSTGRESQL)
def test_postgresql_knows_of_what_no_statement_tells(what: str, using: str) -> None:
    refused(f"/dirty/{using}/{what}")
    assert skus(using) == ["first"]


class OfTenant(View):
    """``SET LOCAL`` ends with its transaction, and PostgreSQL does not tell that it was said."""

    def dispatch(self, request: HttpRequest) -> Any:
        with connections["served"].cursor() as cursor:
            cursor.execute("SET LOCAL app.tenant = '7'")
        return super().dispatch(request)

    def post(self, request: HttpRequest) -> HttpResponse:
        with connections["served"].cursor() as cursor:
            cursor.execute("SELECT current_setting('app.tenant', true)")
            return HttpResponse(cursor.fetchone()[0])


@pytest.mark.parametrize("using", ["postgresql"], indirect=True)
@pytest.mark.parametrize(("where", "tenant"), [("view", b"7"), ("method", b"")])
def test_a_setting_of_the_transaction_is_kept_by_a_lock_above_it_only(
    where: str, tenant: bytes, using: str
) -> None:
    lock = lock_view("stock")
    if where == "view":
        view: Any = lock(OfTenant.as_view())
    else:
        view = type("Locked", (OfTenant,), {"post": lock(OfTenant.post)}).as_view()
    request = RequestFactory().post("/")
    request.resolver_match = ResolverMatch(view, (), {})
    assert BaseHandler().make_view_atomic(view)(request).content == tenant


@pytest.mark.parametrize("using", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("view", ["dirty", "twice"])
@pytest.mark.parametrize("what", READS)
def test_who_has_only_read_gets_the_lock(what: str, view: str, using: str) -> None:
    for _ in range(2):
        assert Client().post(f"/{view}/{using}/{what}").content == b"True"
    assert len(skus(using)) == (3 if view == "dirty" else 5)


def test_a_lease_until_the_commit_is_not_given_back_by_a_lock_inside(using: str) -> None:
    """The code above still counts on it."""
    refused(f"/dirty/{using}/keeps-a-lease", "a lock until its COMMIT")
    assert skus(using) == ["first"]


@pytest.mark.parametrize("view", ["dirty", "locked"])
def test_a_hook_of_before_is_not_run_by_the_lock(view: str, using: str) -> None:
    """Its COMMIT would come before that of the view, which may be rolled back."""
    refused(f"/{view}/{using}/hooks", "a hook of on_commit")
    assert skus(using) == ["first"]


@pytest.mark.django_db(transaction=False)
def test_in_a_testcase_the_hooks_of_the_test_are_in_nobodys_way(
    atomic_requests: None, django_capture_on_commit_callbacks: Any
) -> None:
    urls = {"ROOT_URLCONF": "django_project.dirty", "LOCKKIT": {"default": "memory://"}}
    with override_settings(**urls), django_capture_on_commit_callbacks() as hooks:
        transaction.on_commit(list)
        assert Client().post("/dirty/default/nothing").content == b"True"
        refused("/dirty/default/hooks", "a hook of on_commit")
    assert hooks == [list]


@pytest.mark.parametrize("using", ["postgresql", "mysql"], indirect=True)
def test_in_a_testcase_the_transaction_of_the_test_is_in_nobodys_way(using: str) -> None:
    around = transaction.atomic(using)
    around._from_testcase = True
    with around:
        Sale.objects.using(using).create(sku="of the test")
        assert Client().post(f"/dirty/{using}/reads").content == b"True"
        assert skus(using) == ["first", "of the test", "view"]
        transaction.set_rollback(True, using)


def test_a_transaction_that_is_to_be_rolled_back_is_not_committed(using: str) -> None:
    refused(f"/dirty/{using}/marks", "a rollback that is due")
    assert skus(using) == ["first"]


OF_TABLES = ("reads", "groups")


@pytest.mark.parametrize("using", ["mysql"], indirect=True)
@pytest.mark.parametrize("what", OF_TABLES)
def test_where_it_cannot_be_told_the_lock_is_refused(what: str, using: str) -> None:
    refused(f"/dirty/{using}/{what}", "does not tell")


@pytest.mark.parametrize("using", ["mysql"], indirect=True)
@pytest.mark.parametrize("what", sorted(READS.keys() - {*OF_TABLES}))
def test_mariadb_tells_that_no_transaction_has_begun(what: str, using: str) -> None:
    assert Client().post(f"/dirty/{using}/{what}").content == b"True"


@pytest.mark.parametrize("using", ["mysql"], indirect=True)
def test_mysql_does_not_tell_it(using: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections[using], "mysql_is_mariadb", False)  # MariaDB stands in for it
    refused(f"/dirty/{using}/nothing", "does not tell")


def test_without_autocommit_what_was_rolled_back_is_in_nobodys_way(using: str) -> None:
    connection = connections[using]
    connection.set_autocommit(False)
    Sale.objects.using(using).create(sku="lost")
    with pytest.raises(OpenTransaction, match="commit or roll it back"):
        locks["default"].lock("stock").acquire()
    connection.rollback()
    with locks["default"].lock("stock"):
        pass
    connection.set_autocommit(True)


def test_without_autocommit_a_lease_until_the_commit_is_kept_by_another_lock(using: str) -> None:
    connection = connections[using]
    connection.set_autocommit(False)
    lease = locks["default"].lock("shop", until="commit").acquire()
    with pytest.raises(OpenTransaction, match=r"a lock until its COMMIT.*commit or roll it back"):
        locks["default"].lock("stock").acquire()
    with locks["default"].lock("stock", until="commit"):
        assert not lease.released
    connection.commit()
    with locks["default"].lock("stock"):
        assert lease.released
    connection.rollback()
    connection.set_autocommit(True)


@pytest.mark.parametrize("using", ["postgresql"], indirect=True)
@pytest.mark.parametrize("what", OF_POSTGRESQL)
def test_without_autocommit_what_no_statement_tells_is_not_rolled_back(
    what: str, using: str
) -> None:
    connection = connections[using]
    connection.set_autocommit(False)
    BEFORE[what](using)
    with pytest.raises(OpenTransaction, match="commit or roll it back"):
        locks["default"].lock("stock").acquire()
    connection.rollback()
    connection.set_autocommit(True)


@pytest.mark.parametrize("using", ["postgresql"], indirect=True)
@pytest.mark.parametrize("both", [False, True])
def test_a_lost_lease_rolls_back_the_databases_that_have_atomic_requests(
    both: bool, using: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", both)

    @lock_view("stock")
    def view(request: HttpRequest) -> HttpResponse:
        lease = request.lease  # type: ignore[attr-defined]
        for alias in (using, "default"):
            Sale.objects.using(alias).create(sku="view")
        locks["default"].break_("stock", fence=lease.fencing_token)
        with suppress(LeaseLost):
            lease.extend()
        return HttpResponse()

    assert view(RequestFactory().post("/")).status_code == 503
    assert skus(using) == ["first"]
    assert skus("default") == ([] if both else ["view"])


def test_the_remedy_of_the_message(using: str) -> None:
    assert Client().post(f"/exempt/{using}/inserts").content == b"True"
    assert skus(using) == ["first", "before", "view"]


def test_no_query_of_the_project_runs_a_line_of_lockkit(using: str) -> None:
    """Whatever it locks: what is not asked for a lock costs nothing."""
    Client().post(f"/exempt/{using}/inserts")
    ours: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        module = str(frame.f_globals.get("__name__"))
        if event == "call" and module.startswith("lockkit"):
            ours.append(f"{module}.{frame.f_code.co_qualname}")

    gc.collect()
    gc.disable()  # what other tests left behind is not of these queries
    sys.setprofile(note)
    try:
        with transaction.atomic(using):
            Sale.objects.using(using).create(sku="x")
            list(Sale.objects.using(using).filter(pk__in=range(500)))
    finally:
        sys.setprofile(None)
        gc.enable()
    assert ours == []
