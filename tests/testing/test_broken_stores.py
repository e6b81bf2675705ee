"""The conformance suite catches stores that are wrong, and asks none for what it does not promise.
It runs as a third party has it: each test runs pytest in a project of its own."""

from __future__ import annotations

import re

import pytest
from over_a_wire import all_of
from places import KIT

from lockkit.testing.conformance.network import NetworkTests
from lockkit.testing.conformance.outages import OutageTests

pytest_plugins = ["pytester"]

SUITE = """
import broken_stores
import pytest
from lockkit.testing.conformance import StoreConformance, effects
from lockkit.testing.servers import RedisServer
from lockkit.testing.targets import RedisTarget, Target

effects.SOON = 1.0  # a thread that a mutex keeps out never gets through


class OfBroken(StoreConformance):
    brief = 0.2

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls):
        yield Target("broken://", options=cls.options())

    @classmethod
    def options(cls):
        return {"backend": f"broken_stores:{cls.tested.__name__}"}
"""

OF_ONE = """

class Test{name}(OfBroken):
    schemes = ("broken",)
    tested = broken_stores.{name}
"""

OVER_REDIS = """
    reached = RedisTarget

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls):
        with RedisServer() as server:
            yield RedisTarget(server, options=cls.options())
"""

CAUGHT_BY = {
    "Reviving": "test_what_has_expired_is_gone_also_when_nobody_has_taken_it",
    "TakingBack": "test_what_another_has_taken_is_neither_extended_nor_released",
    "Holding": "test_at_each_effect_another_thread_gets_through",
    "Promising": "test_the_same_token_is_told_what_it_still_has",
    "Lasting": "test_each_declared_trait_is_tested",
    "OneTooMany": "test_so_many_have_a_permit_and_no_more",
    "ReadingApart": "test_readers_read_together_and_writers_write_alone",
}


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makeini(
        f"[pytest]\npythonpath = {KIT}\nasyncio_default_fixture_loop_scope = function\n"
    )
    return pytester


def failed(project: pytest.Pytester, *arguments: str) -> set[str]:
    """The tests that failed, as "class::test"."""
    options = ("-p", "no:cacheprovider", "-p", "no:randomly", "-rf", "--tb=no")
    result = project.runpytest_subprocess(*options, *arguments)
    assert not result.parseoutcomes().keys() - {"passed", "failed", "deselected", "warnings"}
    return set(re.findall(r"^FAILED \S+?::(\w+::\w+)", result.stdout.str(), re.MULTILINE))


def test_each_is_caught(project: pytest.Pytester) -> None:
    project.makepyfile(test_it=SUITE + "".join(OF_ONE.format(name=name) for name in CAUGHT_BY))
    tests = {f"Test{name}::{test}" for name, test in CAUGHT_BY.items()}
    assert failed(project, *(f"test_it.py::{each}" for each in tests)) == tests


def test_the_right_ones_are_not(project: pytest.Pytester) -> None:
    project.makepyfile(test_it=SUITE + OF_ONE.format(name="Bare") + OF_ONE.format(name="Counting"))
    assert failed(project, "-k", " or ".join(CAUGHT_BY.values())) == set()


def test_a_suite_that_never_locks_does_not_pass(project: pytest.Pytester) -> None:
    few = SUITE + OF_ONE.format(name="Unlocking") + "    cycles = 15\n"
    project.makepyfile(test_it=few)
    test = "TestUnlocking::test_eight_threads_exclude_one_another"
    assert failed(project, f"test_it.py::{test}") == {test}


def test_a_server_is_asked_only_for_what_its_store_declares(project: pytest.Pytester) -> None:
    project.makepyfile(test_it=SUITE + OF_ONE.format(name="OverRedis") + OVER_REDIS)
    asked = all_of(NetworkTests, OutageTests)
    assert failed(project, "-k", " or ".join(asked)) == set()
