"""Locks enclose transactions: proven with real commits, seen from another connection."""

from __future__ import annotations

import functools
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.core.handlers.base import BaseHandler
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import ResolverMatch
from django.utils.decorators import method_decorator
from django.views import View
from django_project.shop.models import Sale
from django_project.spy import SpyBackend
from django_project.views import ASYNC_VIEWS, SYNC_VIEWS, Broken, calls

import lockkit
from lockkit.model.errors import ConfigurationError
from lockkit_django import OpenTransaction, lock_view, locks

pytestmark = pytest.mark.django_db(transaction=True)

SYNC = pytest.mark.parametrize("kind", SYNC_VIEWS)
ASYNC = pytest.mark.parametrize("kind", ASYNC_VIEWS)
BOTH_SETTINGS = pytest.mark.parametrize("atomic", [False, True], ids=["autocommit", "atomic"])


@pytest.fixture
def atomic(request: pytest.FixtureRequest) -> bool:
    if request.param:
        request.getfixturevalue("atomic_requests")
    return bool(request.param)


class Story:
    """What was so at each grant and release."""

    def __init__(self, committed: Any) -> None:
        self._committed = committed
        self.events: list[tuple[str, int, bool]] = []

    def __call__(self, event: str, name: str) -> None:
        open_block = connections["default"].in_atomic_block
        self.events.append((event, self._committed.sales("A1"), open_block))


@pytest.fixture
def story(committed: Any) -> Story:
    told = Story(committed)
    SpyBackend.observers.append(told)
    return told


@SYNC
@pytest.mark.parametrize("atomic", [False, True], ids=["autocommit", "atomic"], indirect=True)
def test_no_transaction_at_the_grant_and_the_row_is_there_at_the_release(
    kind: str, atomic: bool, story: Story
) -> None:
    response = Client().post(f"/{kind}/A1")
    assert (response.status_code, "sold" in response.content.decode()) == (200, True)
    grants = [event for event in story.events if event[0] == "grant"]
    releases = [event for event in story.events if event[0] == "release"]
    assert set(grants) == {("grant", 0, False)}
    assert set(releases) == {("release", 1, False)}
    assert len(grants) == len(releases) == (2 if kind == "nested" else 1)


@ASYNC
async def test_the_row_of_an_async_view_is_there_at_the_release(kind: str, story: Story) -> None:
    response = await AsyncClient().post(f"/{kind}/A1")
    assert response.status_code == 200
    assert [event[:2] for event in story.events] == [("grant", 0), ("release", 1)]


@ASYNC
def test_async_views_work_under_wsgi(kind: str, story: Story) -> None:
    assert Client().post(f"/{kind}/A1").status_code == 200
    assert [event[:2] for event in story.events] == [("grant", 0), ("release", 1)]


@ASYNC
def test_atomic_requests_with_an_async_view_is_refused(
    kind: str, atomic_requests: None, story: Story
) -> None:
    """By Django, or by us where Django cannot see that the view is async."""
    with pytest.raises(RuntimeError, match="ATOMIC_REQUESTS with async views"):
        Client().post(f"/{kind}/A1")
    assert story.events == []


@SYNC
def test_a_failing_view_is_rolled_back_before_the_release(
    kind: str, atomic_requests: None, story: Story
) -> None:
    with pytest.raises(Broken):
        Client().post(f"/{kind}/A1?fail=1")
    assert ("release", 0, False) in story.events
    assert all(sales == 0 for _, sales, _ in story.events)
    assert Sale.objects.count() == 0


@SYNC
def test_without_atomic_requests_a_failing_view_keeps_what_it_did(kind: str) -> None:
    with pytest.raises(Broken):
        Client().post(f"/{kind}/A1?fail=1")
    assert Sale.objects.count() == 1


@pytest.mark.parametrize("kind", ["method", "api-method", "nested"])
def test_on_sqlite_a_view_that_has_committed_does_not_wait_for_the_next_writer(
    kind: str, atomic_requests: None
) -> None:
    """Though the transaction of ATOMIC_REQUESTS around it begins again, with IMMEDIATE."""
    other = sqlite3.connect(connections["default"].settings_dict["NAME"])

    def write(event: str, name: str) -> None:
        if event == "release" and not other.in_transaction:
            other.execute("BEGIN IMMEDIATE")

    SpyBackend.observers.append(write)
    try:
        assert Client().post(f"/{kind}/A1").status_code == 200
        assert other.in_transaction
    finally:
        other.close()
    with transaction.atomic():
        assert connections["default"].transaction_mode == "IMMEDIATE"
    assert Sale.objects.count() == 1


def naive_lock_view(view: Any) -> Any:
    """What everybody writes first: ATOMIC_REQUESTS commits after it has released."""
    from functools import wraps

    @wraps(view)
    def locked(*args: Any, **kwargs: Any) -> Any:
        with locks["default"].lock("stock:A1", in_atomic="allow"):
            return view(*args, **kwargs)

    return locked


def test_the_proof_can_fail(
    atomic_requests: None, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same story, told of the naive decorator, shows its fault."""

    def view(request: HttpRequest, sku: str) -> HttpResponse:
        Sale.objects.create(sku=sku)
        return HttpResponse("sold")

    handler_view = transaction.atomic(naive_lock_view(view))
    handler_view(RequestFactory().post("/"), sku="A1")
    assert story.events == [("grant", 0, True), ("release", 0, True)]


def test_the_user_s_function_is_not_changed() -> None:
    @transaction.non_atomic_requests(using="other")
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    wrapper = lock_view("a")(view)
    assert view._non_atomic_requests == {"other"}
    assert "default" in wrapper._non_atomic_requests


@pytest.mark.parametrize("order", ["above", "below"])
def test_a_view_that_is_exempt_stays_exempt(
    order: str, atomic_requests: None, committed: Any
) -> None:
    """Its first query is committed at once, as without the lock."""

    def view(request: HttpRequest) -> HttpResponse:
        Sale.objects.create(sku="A1")
        return HttpResponse(str(committed.sales("A1")))

    if order == "below":
        decorated = lock_view("a")(transaction.non_atomic_requests(view))
    else:
        decorated = transaction.non_atomic_requests(lock_view("a")(view))
    assert decorated(RequestFactory().post("/")).content == b"1"


class Sells(View):
    def post(self, request: HttpRequest) -> HttpResponse:
        Sale.objects.create(sku="A1")
        return HttpResponse(str(connections["default"].in_atomic_block))


locked_dispatch = method_decorator(lock_view("a"), name="dispatch")
exempt_dispatch = method_decorator(transaction.non_atomic_requests, name="dispatch")
both = method_decorator([lock_view("a"), transaction.non_atomic_requests], name="dispatch")


def handled(callback: Any) -> bytes:
    """What the handler gets of it."""
    request = RequestFactory().post("/")
    request.resolver_match = ResolverMatch(callback, (), {})
    response: HttpResponse = BaseHandler().make_view_atomic(callback)(request)
    return response.content


@pytest.mark.parametrize(
    "decorate", [both, lambda view: locked_dispatch(exempt_dispatch(view))], ids=["list", "lines"]
)
def test_so_is_a_class_that_is_exempt_below_its_lock(decorate: Any, atomic_requests: None) -> None:
    view: Any = decorate(type("Exempt", (Sells,), {}))
    assert [handled(view.as_view()) for _ in range(2)] == [b"False", b"False"]


def test_an_exemption_above_the_lock_of_a_class_takes_no_other_s_transaction(
    atomic_requests: None,
) -> None:
    """Django keeps it in one set for all routes of the class, and of those that inherit from it."""
    view: Any = locked_dispatch(type("Locked", (Sells,), {}))
    exempt: Any = exempt_dispatch(type("Exempt", (view,), {}))
    for callback in (exempt.as_view(), transaction.non_atomic_requests(view.as_view())):
        handled(callback)
    assert handled(view.as_view()) == b"True"


def test_nor_if_the_lock_is_on_the_very_method(atomic_requests: None) -> None:
    class Locked(Sells):
        @lock_view("a")
        def dispatch(self, *args: Any, **kwargs: Any) -> Any:
            return super().dispatch(*args, **kwargs)

    class Inherits(Locked):
        pass

    assert handled(transaction.non_atomic_requests(Locked.as_view())) == b"True"
    assert [handled(each.as_view()) for each in (Locked, Inherits)] == [b"True", b"True"]


@pytest.mark.parametrize(("order", "kept"), [("above", 1), ("below", 0)])
def test_what_a_decorator_writes_is_part_of_the_transaction_below_the_lock_only(
    order: str, kept: int, atomic_requests: None, committed: Any
) -> None:
    """Above it has inherited, by functools.wraps, that the handler opens none."""

    def noted(view: Any) -> Any:
        @functools.wraps(view)
        def wrapper(request: HttpRequest) -> Any:
            Sale.objects.create(sku="A1")
            return view(request)

        return wrapper

    def failing(request: HttpRequest) -> HttpResponse:
        raise Broken

    locked = lock_view("a")
    decorated = noted(locked(failing)) if order == "above" else locked(noted(failing))
    handled = BaseHandler().make_view_atomic(decorated)
    with pytest.raises(Broken):
        handled(RequestFactory().post("/"))
    assert committed.sales("A1") == kept


def test_a_lock_inside_the_user_s_transaction_is_refused() -> None:
    lock = locks["default"].lock("stock:1")
    with pytest.raises(OpenTransaction, match=r"above @transaction\.atomic") as caught:
        transaction.atomic(lock.acquire)()
    assert caught.value.name == "stock:1"
    assert isinstance(caught.value, lockkit.ConfigurationError)


@pytest.mark.parametrize("is_locked", [False, True])
def test_a_view_that_has_written_no_atomic_is_told_whose_it_is(
    is_locked: bool, atomic_requests: None
) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        locks["default"].lock("stock:1").acquire()
        return HttpResponse()

    handled = BaseHandler().make_view_atomic(lock_view("a")(view) if is_locked else view)
    expected = (
        r"inside the transaction of ATOMIC_REQUESTS .*@lock_view, which takes several names, "
        r"or @transaction\.non_atomic_requests.*until='commit'"
    )
    with pytest.raises(OpenTransaction, match=expected):
        handled(RequestFactory().post("/"))


def test_a_locked_view_inside_the_user_s_transaction_is_refused(
    atomic_requests: None, committed: Any
) -> None:
    view = transaction.atomic(SYNC_VIEWS["function"])
    with pytest.raises(OpenTransaction):
        view(RequestFactory().post("/"), sku="A1")
    assert committed.sales("A1") == 0


def test_in_atomic_allow() -> None:
    with transaction.atomic(), locks["default"].lock("report", in_atomic="allow") as lease:
        lease.check()


@pytest.mark.django_db(transaction=True)
def test_a_lock_that_encloses_the_block_may_be_entered_again_in_it() -> None:
    lock = locks["default"].lock("stock:A1", reentrant=True)
    with lock, transaction.atomic():
        with lock as inner:
            inner.check()
        with pytest.raises(OpenTransaction):
            locks["default"].lock("stock:A2", reentrant=True).acquire()
    with transaction.atomic(), pytest.raises(OpenTransaction):
        lock.acquire()


@pytest.mark.django_db(transaction=True)
def test_one_that_another_thread_holds_for_the_same_owner_may_not() -> None:
    """That thread may leave before this one's COMMIT."""
    lock = locks["default"].lock("stock:A1", reentrant=True, owner="cart:7")
    with ThreadPoolExecutor(1) as thread:
        others = thread.submit(lock.acquire).result()
        with transaction.atomic(), pytest.raises(OpenTransaction):
            lock.acquire()
        with lock, transaction.atomic(), lock:
            assert thread.submit(others.release).result()


def test_a_wrong_in_atomic_is_named() -> None:
    with pytest.raises(lockkit.ConfigurationError, match="'refuse' or 'allow'"):
        locks["default"].lock("a", in_atomic="maybe")  # type: ignore[call-overload]


@SYNC
def test_a_lease_lost_in_the_view_rolls_back(kind: str, atomic_requests: None) -> None:
    """It is checked right before the COMMIT. Nothing was done, so trying again is safe: 503."""
    response = Client().post(f"/{kind}/A1?lose=1")
    assert (response.status_code, response["Retry-After"]) == (503, "1")
    assert Sale.objects.count() == 0


def test_a_lease_lost_without_a_transaction_raises() -> None:
    """What was done stays done, so nobody may be told to try again."""
    with pytest.raises(lockkit.LeaseLost, match="an operator released it"):
        Client().post("/function/A1?lose=1")
    assert Sale.objects.count() == 1


def test_an_async_lease_lost_raises() -> None:
    with pytest.raises(lockkit.LeaseLost, match="an operator released it"):
        Client().post("/coroutine/A1?lose=1")


def test_a_read_transaction_without_autocommit_is_ended_and_a_dirty_one_refused() -> None:
    connection = connections["default"]
    connection.set_autocommit(False)
    try:
        list(Sale.objects.all())
        with locks["default"].lock("a"):
            Sale.objects.create(sku="A1")
            with pytest.raises(OpenTransaction, match="with changes"):
                locks["default"].lock("b").acquire()
        connection.rollback()
    finally:
        connection.set_autocommit(True)


@pytest.mark.parametrize("kind", ["function", "method", "api-method", "action"])
def test_without_autocommit_a_view_whose_block_would_not_commit_is_refused(
    kind: str, atomic_requests: None
) -> None:
    connection = connections["default"]
    connection.set_autocommit(False)
    try:
        with pytest.raises(ConfigurationError, match=r"lock_view needs .*'default' has AUTOCOMMIT"):
            Client().post(f"/{kind}/A1")
        assert calls == []
        assert locks["default"].inspect("stock:A1") is None
    finally:
        connection.rollback()
        connection.set_autocommit(True)


def test_without_autocommit_a_view_that_is_exempt_commits_itself(
    atomic_requests: None, story: Story
) -> None:
    @lock_view("stock:A1")
    @transaction.non_atomic_requests
    def view(request: HttpRequest) -> HttpResponse:
        Sale.objects.create(sku="A1")
        transaction.commit()
        return HttpResponse()

    connections["default"].set_autocommit(False)
    try:
        assert view(RequestFactory().post("/")).status_code == 200
    finally:
        connections["default"].set_autocommit(True)
    assert story.events == [("grant", 0, False), ("release", 1, False)]
