"""Which tests run for a store that is reached in another way, and which of them by asyncio.
docs/adr/0017 says why these are not the whole suite; with ``--whole`` they are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import pytest
from garbage import collected

from lockkit.testing.conformance import StoreConformance
from lockkit.testing.conformance.exchanges import ExchangeTests
from lockkit.testing.conformance.exclusion import ExclusionTests
from lockkit.testing.conformance.listing import ListingTests
from lockkit.testing.conformance.network import NetworkTests
from lockkit.testing.conformance.outages import OutageTests
from lockkit.testing.conformance.queueing import QueueTests
from lockkit.testing.conformance.readers import ReaderWriterTests
from lockkit.testing.conformance.reentry import ReentryTests
from lockkit.testing.conformance.semaphores import SemaphoreTests
from lockkit.testing.conformance.steps import StepTests
from lockkit.testing.conformance.waiting import WaitingTests

whole = False
"""Whether ``--whole`` was given: set before any test is collected."""


def all_of(*parts: type) -> frozenset[str]:
    return frozenset(name for part in parts for name in vars(part) if name.startswith("test_"))


REACHED = frozenset(
    {
        "test_it_is_what_the_url_leads_to",
        "test_a_lease_is_held_until_it_is_released",
        "test_fences_grow_with_every_grant",
        "test_the_reply_to_acquire_is_dropped",
        "test_a_store_that_cannot_be_reached",
        "test_waiters_survive_cut_connections",
        "test_waiters_survive_a_killed_subscription",
    }
)
"""Connections are made, lost, and made again."""

CONNECTED = REACHED | {
    "test_busy_at_once",
    "test_extend_sets_what_is_left",
    "test_odd_names_are_all_different",
    "test_waiters_are_granted_in_the_order_they_came",
    "test_a_waiter_gets_it_soon_after_it_is_released",
    "test_a_waiter_is_told_and_does_not_ask_again_and_again",
    "test_eight_threads_exclude_one_another",
    "test_an_owner_enters_from_another_process",
    "test_a_forked_child_owns_nothing_of_its_parents",
    "test_an_interrupted_waiter_leaves_nothing",
    "test_fifty_waiters_and_one_releaser",
    "test_cancelling_at_any_moment_leaves_nothing",
    "test_clients_survive_a_restart_and_fences_keep_growing",
    "test_a_waiter_survives_a_restart_or_is_told",
    "test_forgotten_scripts_are_loaded_again",
}
"""What a connection can spoil, beside all of NetworkTests."""

BY_TASKS = (
    CONNECTED
    | all_of(ExclusionTests, WaitingTests, QueueTests, NetworkTests, OutageTests, ExchangeTests)
) - {"test_clients_survive_a_restart_and_fences_keep_growing"}
"""What the asyncio wire of a store can spoil, if it is written for that store."""

BY_OTHERS_TASKS = REACHED | {
    "test_waiters_are_granted_in_the_order_they_came",
    "test_a_waiter_gets_it_soon_after_it_is_released",
    "test_a_waiter_is_told_and_does_not_ask_again_and_again",
    "test_a_forked_child_owns_nothing_of_its_parents",
    "test_an_interrupted_waiter_leaves_nothing",
}
"""What can be spoiled where the asyncio wire is that of another store, which runs all tests."""

BY_TASKS_OF_SQL = BY_OTHERS_TASKS | all_of(NetworkTests)
"""The same, and what a driver can spoil whose calls are made in threads."""

BY_ANOTHER_DRIVER = (
    REACHED
    | all_of(NetworkTests)
    | {
        "test_odd_names_are_all_different",
        "test_waiters_are_granted_in_the_order_they_came",
        "test_a_forked_child_owns_nothing_of_its_parents",
        "test_an_interrupted_waiter_leaves_nothing",
    }
)
"""What a driver can spoil. What a table decides is the same over each."""

BY_ANOTHER_DRIVERS_TASKS = frozenset({"test_a_lease_is_held_until_it_is_released"})
"""Tasks call it in threads."""

TOLD = frozenset({"test_a_waiter_is_told_and_does_not_ask_again_and_again"})


class OverAWire(StoreConformance):
    """All that a connection can spoil. What the store decides by itself is the same over each."""

    asked: ClassVar[frozenset[str]] = CONNECTED | all_of(NetworkTests)

    tells: ClassVar[bool] = True
    """Whether messages come over this way, if the store sends any."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        asked = {*dir(cls)} if whole else cls.asked
        asked -= set() if cls.tells else TOLD
        for name in dir(cls):
            if name.startswith("test_") and name not in asked:
                setattr(cls, name, None)


class Reached(OverAWire):
    """A store for which more tests run without TLS, or over another way to its server."""

    asked = REACHED


class OfAnotherServer(OverAWire):
    """Another program runs the scripts or statements of a store: all that they decide is tested."""

    asked = OverAWire.asked | all_of(
        StepTests, ListingTests, SemaphoreTests, ReaderWriterTests, ReentryTests
    )


def is_asked(item: pytest.Item) -> bool:
    """Whether it runs: ``by_tasks`` of its class are the tests that it also runs by asyncio."""
    names = getattr(getattr(item, "cls", None), "by_tasks", None)
    if whole or names is None or not isinstance(item, pytest.Function):
        return True
    parameters = getattr(item, "callspec", None)
    by_tasks = parameters is not None and parameters.params.get("api") == "async"
    return not by_tasks or item.originalname in names


LOSES_SOCKETS = pytest.mark.filterwarnings(
    r"ignore:unclosed (<ssl\.SSLSocket|<socket\.socket|transport <_Selector):ResourceWarning"
)
"""CPython loses a socket that is reset or given up during the TLS handshake. It is collected at the
end of ``by_tls``, where the warnings are ignored."""


@contextmanager
def by_tls() -> Iterator[None]:
    """redis-py reads all certificates that the machine trusts, for each connection, in 16 ms of
    CPU. Here their directory is empty, as their file is in all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_DIR", os.devnull)
        yield
    collected()
