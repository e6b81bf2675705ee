"""Tasks of RQ, Huey and Dramatiq and a view exclude one another by name. Celery: test_celery."""

from __future__ import annotations

from collections.abc import Callable

import dramatiq
import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path
from dramatiq.brokers.stub import StubBroker
from huey import MemoryHuey
from huey.exceptions import TaskException
from redis import Redis
from rq import Queue, SimpleWorker
from rq.timeouts import TimerDeathPenalty

import lockkit
from lockkit_django import lock_view, locked, locks

SOON = 60.0

Run = Callable[[str], str]

huey = MemoryHuey("shop", immediate=True)
broker = StubBroker()
restocked: list[str] = []


@locked("stock:{sku}", timeout=0, ttl=600)
def restock(sku: str) -> str:
    """Tells what is held while it runs, and by whom."""
    infos = locks["default"].holders(lockkit.name("stock:{sku}", sku=sku))
    restocked.extend(f"{info.name} by {info.owner.label}" for info in infos if info.owner)
    return restocked[-1]


restock_in_huey = huey.task()(restock)
restock_in_dramatiq = dramatiq.actor(restock, broker=broker, max_retries=0)


def by_huey(sku: str) -> str:
    try:
        return str(restock_in_huey(sku).get(blocking=True, timeout=SOON))
    except TaskException as error:
        raise LookupError(error.metadata["error"]) from error


def by_dramatiq(sku: str) -> str:
    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=1)
    restock_in_dramatiq.send(sku)
    worker.start()
    try:
        broker.join("default", timeout=int(SOON * 1000), fail_fast=True)
    except lockkit.LockHeld as error:
        raise LookupError(repr(error)) from error
    finally:
        worker.stop()
        broker.flush_all()  # what failed stays in it
    return restocked[-1]


class Worker(SimpleWorker):
    death_penalty_class = TimerDeathPenalty  # the other one takes the alarm of pytest-timeout

    def _install_signal_handlers(self) -> None:
        """They are the test run's."""


@pytest.fixture
def by_rq(redis_url: str) -> Run:
    def run(sku: str) -> str:
        with Redis.from_url(redis_url) as connection:
            queue = Queue(connection=connection)
            job = queue.enqueue(restock, sku)
            Worker([queue], connection=connection).work(burst=True)
            result = job.latest_result()
        assert result is not None
        if result.exc_string:
            raise LookupError(result.exc_string)
        return str(result.return_value)

    return run


@pytest.fixture(params=["huey", "dramatiq", "rq"])
def run(request: pytest.FixtureRequest) -> Run:
    """One task, run to its end. Raises LookupError with what it failed of."""
    if request.param == "rq":
        by_rq: Run = request.getfixturevalue("by_rq")
        return by_rq
    return by_huey if request.param == "huey" else by_dramatiq


@lock_view("stock:{sku}", timeout=0, ttl=600)
def sell(request: HttpRequest, sku: str) -> HttpResponse:
    """Asks a task for its own name, and for another one."""
    with pytest.raises(LookupError, match=r"LockHeld.*stock:A%3A1.* is held"):
        request.environ["run"](sku)
    return HttpResponse(request.environ["run"]("B"))


urlpatterns = [path("stock/<sku>", sell)]


@override_settings(ROOT_URLCONF=__name__, LOCKKIT={"default": "memory://queues"})
def test_what_a_view_holds_is_refused_to_a_task(run: Run) -> None:
    assert Client().post("/stock/A:1", run=run).content == b"stock:B by restock"
    assert run("A:1") == "stock:A%3A1 by restock"
    assert not list(locks["default"].holders())
