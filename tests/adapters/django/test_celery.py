"""One name, three doors: a view, a Celery task and a management command exclude one another."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery.app.log import Logging
from celery.contrib.testing.worker import start_worker
from django.core.management import BaseCommand, CommandParser, call_command
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path

import lockkit
from lockkit_django import lock_view, locked, locks

pytestmark = pytest.mark.django_db(transaction=True)

SOON = 60.0


class OurLogging(Logging):
    def setup(self, *_: Any, **options: Any) -> None:
        """A worker takes the root logger, its handlers and the warnings of the process over."""


before = [*sys.path]
app = Celery(
    "shop", broker="memory://", backend="cache+memory://", log=OurLogging, set_as_current=False
)
sys.path[:] = before  # it has put the working directory there, for Django's sake
inside = threading.Event()
go_on = threading.Event()


@app.task(name="restock")
@locked("stock:{sku}", timeout=0, ttl=600)
def restock(sku: str, wait: bool = False) -> str:
    if wait:
        inside.set()
        assert go_on.wait(SOON)
    return "restocked"


class Restock(BaseCommand):
    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("sku")

    @locked("stock:{sku}", timeout=0, ttl=600)
    def handle(self, *_: Any, sku: str, **options: Any) -> str:
        return f"restocked {sku}"


@lock_view("stock:{sku}", timeout=0, ttl=600)
def sell(request: HttpRequest, sku: str) -> HttpResponse:
    """Asks both of the others for its own name, and for another one."""
    for door in (
        lambda sku: restock.delay(sku).get(SOON),
        lambda sku: call_command(Restock(), sku),
    ):
        with pytest.raises(lockkit.LockHeld):
            door(sku)
        assert "restocked" in door(f"other than {sku}")
    return HttpResponse("sold")


urlpatterns = [path("stock/<sku>", sell)]


@pytest.fixture(params=["memory", "redis"], autouse=True)
def shop(request: pytest.FixtureRequest) -> Iterator[None]:
    url = "memory://celery"
    if request.param == "redis":
        url = request.getfixturevalue("redis_url")
    with override_settings(ROOT_URLCONF=__name__, LOCKKIT={"default": url}):
        yield


@pytest.fixture(scope="module", autouse=True)
def worker() -> Iterator[None]:
    """One for all: to stop takes it seconds."""
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=SOON):
        yield


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    inside.clear()
    go_on.clear()
    yield
    go_on.set()


def test_what_a_view_holds_is_refused_to_tasks_and_commands() -> None:
    assert Client().post("/stock/A:1").content == b"sold"


def test_what_a_task_holds_is_refused_to_views_and_commands() -> None:
    running = restock.delay("A:1", wait=True)
    assert inside.wait(SOON)
    assert Client().post("/stock/A:1").status_code == 423
    with pytest.raises(lockkit.LockHeld):
        call_command(Restock(), "A:1")
    info = locks["default"].inspect("stock:A%3A1")
    assert info is not None and info.owner is not None
    assert info.owner.label == "restock"
    go_on.set()
    assert running.get(SOON) == "restocked"
    assert call_command(Restock(), "A:1") == "restocked A:1"
