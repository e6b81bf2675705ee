"""Which tests run, and in which order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from places import ROOT

LONG = (
    "tests/faults/test_interrupts.py",
    "tests/examples/shop/test_race.py",
    "tests/stores/test_sessions.py",
    "tests/faults/test_interrupted_sessions.py",
    "tests/stores/conformance/test_zookeeper.py",
    "tests/stores/conformance/test_redis_family.py",
    "tests/stores/conformance/test_sqlalchemy.py",
    "tests/stores/conformance/test_redis.py",
    "tests/stores/test_sessions_apart.py",
    "tests/examples/shop/test_demo.py",
    "tests/faults/test_given_up_sessions.py",
    "tests/stores/test_redlock.py",
    "tests/stores/conformance/test_sessions.py",
    "tests/stores/test_lua_agrees.py",
    "tests/faults/test_cluster.py",
    "tests/faults/test_half_open.py",
    "tests/faults/test_zookeeper.py",
    "tests/stores/conformance/test_sqlite.py",
    "tests/stores/test_zookeeper.py",
    "tests/faults/test_unreadable.py",
    "tests/stores/conformance/test_plain.py",
    "tests/faults/test_cancellation.py",
    "tests/faults/test_moved_address.py",
    "tests/faults/test_sentinel.py",
    "tests/stores/conformance/test_memory.py",
    "tests/faults/test_interrupts_async.py",
    "tests/leases/test_gevent.py",
    "tests/faults/crashes/test_orphans.py",
    "tests/testing/test_checkers.py",
    "tests/stores/conformance/test_redlock.py",
    "tests/adapters/django/orders/test_isolation.py",
    "tests/stores/conformance/test_django_database.py",
    "tests/faults/test_damaged_rows.py",
    "tests/stores/test_notify.py",
    "tests/compat/test_redis_extras.py",
    "tests/examples/shop/test_browser.py",
    "tests/leases/test_last_words.py",
    "tests/stores/test_round_trips.py",
    "tests/adapters/django/orders/test_table.py",
    "tests/package/test_types.py",
    "tests/faults/test_exit.py",
    "tests/faults/test_busy_loops.py",
    "tests/faults/test_bounds.py",
    "tests/compat/test_redis_lock.py",
    "tests/leases/test_renewal.py",
    "tests/faults/test_not_promised.py",
    "tests/faults/crashes/test_flask.py",
    "tests/stores/test_redlock_limits.py",
    "tests/faults/crashes/test_django.py",
    "tests/adapters/django/test_in_users_tests.py",
    "tests/faults/crashes/test_soak.py",
    "tests/adapters/flask/test_until_commit.py",
    "tests/stores/test_needs.py",
    "tests/stores/test_subscription.py",
    "tests/adapters/flask/orders/test_isolation.py",
    "tests/testing/test_broken_stores.py",
    "tests/testing/test_plugin.py",
    "tests/stores/test_redis.py",
    "tests/operate/test_commands_scale.py",
    "tests/faults/rolling/test_rolling_deploy.py",
    "tests/stores/test_sessions_extended.py",
)
"""The longest first, as in the table at the end of a run. One worker runs all of a file, or all of
a class in it."""

NOT_QUICK = (
    "tests/adapters/django/orders/test_security.py",
    "tests/adapters/django/orders/test_servers.py",
    "tests/adapters/django/test_celery.py",
    "tests/adapters/django/test_database_backend.py",
    "tests/adapters/django/test_in_users_tests.py",
    "tests/adapters/django/test_locks_command.py",
    "tests/adapters/django/test_queues.py",
    "tests/adapters/django/test_until_commit.py",
    "tests/adapters/flask/orders/test_security.py",
    "tests/adapters/flask/test_machines.py",
    "tests/adapters/shared/test_preload.py",
    "tests/adapters/shared/test_streams.py",
    "tests/compat/test_rolling_deploy.py",
    "tests/examples/shop",
    "tests/examples/test_classic_docs.py",
    "tests/examples/test_redis_docs.py",
    "tests/examples/test_redlock_docs.py",
    "tests/faults",
    "tests/leases/test_gevent.py",
    "tests/leases/test_many.py",
    "tests/operate/test_commands_scale.py",
    "tests/package/test_types.py",
    "tests/stores/conformance",
    "tests/stores/test_lua_agrees.py",
    "tests/stores/test_redis_scale.py",
    "tests/stores/test_redlock",
    "tests/stores/test_replicas.py",
    "tests/stores/test_subscription.py",
    "tests/testing",
)
OTHER_SERVERS = {"other_servers"}
OTHER_SERVER = re.compile("postgres|mariadb|mysql|valkey|zookeeper|gunicorn|uvicorn", re.IGNORECASE)


def turn(item: pytest.Item) -> int:
    return next((i for i, path in enumerate(LONG) if item.nodeid.startswith(path)), len(LONG))


def takes_long(path: Path) -> bool:
    """Whether ``--quick`` leaves out this file of tests."""
    return path.relative_to(ROOT).as_posix().startswith(NOT_QUICK)


def needs_redis_at_most(item: pytest.Item) -> bool:
    asked = getattr(item, "fixturenames", ())
    return OTHER_SERVERS.isdisjoint(asked) and not OTHER_SERVER.search(item.name)
