"""``@locked`` and the decorators that register a function as a task or a command."""

from __future__ import annotations

from typing import Any

import click
import dramatiq
import pytest
from celery import Celery
from dramatiq.brokers.stub import StubBroker
from flask import Flask
from huey import MemoryHuey

import lockkit
import lockkit_django
import lockkit_flask


def report(day: str) -> str:
    return day


class DjangoTask:
    """The shape of a task of Django 6 and django-tasks."""

    def enqueue(self, day: str) -> None:
        raise NotImplementedError


TASKS = {
    "celery": Celery("decorated", broker="memory://", set_as_current=False, fixups=[]).task(report),
    "huey": MemoryHuey("decorated").task()(report),
    "dramatiq": dramatiq.actor(report, broker=StubBroker()),
    "django": DjangoTask(),
    "click": click.command()(report),
    "flask": Flask("decorated").cli.command()(report),
}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("package", [lockkit, lockkit_django, lockkit_flask])
def test_above_a_task_it_says_where_it_belongs(package: Any, task: str) -> None:
    with pytest.raises(lockkit.ConfigurationError, match="directly above the function"):
        package.locked("report:{day}")(TASKS[task])


def test_an_object_of_your_own_and_a_function_with_attributes_are_no_tasks() -> None:
    class Mail:
        def __call__(self, day: str) -> str:
            return day

        def send(self) -> None: ...

        def schedule(self) -> None: ...

    def as_of_rq(day: str) -> str:
        return day

    as_of_rq.delay = as_of_rq.enqueue = report  # type: ignore[attr-defined]
    for function in (Mail(), as_of_rq):
        assert callable(lockkit.locked("report:{day}")(function))
