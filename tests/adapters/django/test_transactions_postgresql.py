"""Snapshots: a transaction that is open too early under PostgreSQL's REPEATABLE READ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django_project.servers import entry
from psycopg import IsolationLevel, connect

from lockkit_django import OpenTransaction, locks


@pytest.fixture
def database(postgres_url: str, django_db_blocker: Any) -> Iterator[BaseDatabaseWrapper]:
    """An alias ``pg`` with one row, ``stock`` = 1."""
    with connect(postgres_url, autocommit=True) as other:
        other.execute("CREATE TABLE stock (n int)")
        other.execute("INSERT INTO stock VALUES (1)")
    connections.settings["pg"] = entry(
        postgres_url, OPTIONS={"isolation_level": IsolationLevel.REPEATABLE_READ}
    )
    connection = connections["pg"]
    with django_db_blocker.unblock():
        yield connection
        connection.close()
    del connections["pg"]
    del connections.settings["pg"]


def read(connection: BaseDatabaseWrapper) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT n FROM stock")
        return int(cursor.fetchone()[0])


def test_a_snapshot_taken_before_the_grant_is_given_up(
    database: BaseDatabaseWrapper, postgres_url: str
) -> None:
    """With autocommit off, as raw scripts have it: the first read has begun a transaction."""
    database.set_autocommit(False)
    assert read(database) == 1
    with connect(postgres_url, autocommit=True) as other:
        other.execute("UPDATE stock SET n = 0")
    assert read(database) == 1  # the snapshot
    with locks["default"].lock("stock"):
        assert read(database) == 0
    with database.cursor() as cursor:
        cursor.execute("UPDATE stock SET n = 5")
    with pytest.raises(OpenTransaction, match="with changes"):
        locks["default"].lock("stock").acquire()
    database.rollback()
