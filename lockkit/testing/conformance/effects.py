"""What a step keeps from others while its effects are performed: nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any, TypeVar

from lockkit.engine.effects import Step
from lockkit.model.types import Busy, Grant, Mode
from lockkit.stores.contract import Listed, Waited
from lockkit.testing.blocking import AnyClient
from lockkit.testing.conformance.base import SOON, Spawn, nothing_left, opened
from lockkit.testing.conformance.steps import claim, queue_of
from lockkit.testing.targets import Target

R = TypeVar("R")


class EffectTests:
    def test_at_each_effect_another_thread_gets_through(
        self, store: Target, name: str, spawn: Spawn
    ) -> None:
        """No mutex is held. Steps are the same for threads and for tasks, so threads will do."""
        with ExitStack() as stack:
            client = opened(stack, store, "sync", None, {})

            def pass_through() -> None:
                stranger = claim(name)
                client.perform(client.store.acquire(stranger))
                client.perform(client.store.release(stranger))

            live(client, name, lambda: spawn(pass_through).result(SOON))
            nothing_left(client, name)


def live(client: AnyClient, name: str, meanwhile: Callable[[], object]) -> None:
    """One claim has the name, others do not get it. ``meanwhile`` is called at each effect."""

    def perform(step: Step[R]) -> R:
        result: R = client.perform(interrupted(step, meanwhile))
        return result

    store, holder, waiter = client.store, claim(name), claim(name, Mode.ENQUEUE)
    assert isinstance(perform(store.acquire(holder)), Grant)
    perform(store.extend([holder]))
    perform(store.acquire(claim(name)))
    if isinstance(store, Waited):
        busy = perform(store.acquire(waiter))
        assert isinstance(busy, Busy)
        perform(queue_of(client).wait(waiter, 0.02, busy))
        perform(store.release(waiter._replace(queued=True)))
    if isinstance(store, Listed):
        perform(store.page(name))
    perform(store.release(holder))


def interrupted(step: Step[R], meanwhile: Callable[[], object]) -> Step[R]:
    """The step; at each of its effects, ``meanwhile`` is called."""
    reply: Any = None
    error: BaseException | None = None
    with closing(step):  # also if ``meanwhile`` fails, of which the step does not hear
        while True:
            try:
                effect = step.send(reply) if error is None else step.throw(error)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            reply, error = None, None
            meanwhile()
            try:
                reply = yield effect
            except BaseException as failure:  # noqa: BLE001  the step hears of it
                error = failure
