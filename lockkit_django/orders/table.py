"""Records of orders in a Django database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, InterfaceError, connections, router, transaction

from lockkit.model.errors import ConfigurationError
from lockkit.orders import Record, rows
from lockkit.orders.failures import typed
from lockkit.orders.psycopg import Step, is_plain
from lockkit.orders.table import Table

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

try:
    from lockkit_django.models import OrderRecord
except RuntimeError as missing:  # what Django raises for a model of no installed application
    raise ConfigurationError(
        "orders and lockkit's middleware need 'lockkit_django' in INSTALLED_APPS, and then "
        "'manage.py migrate'"
    ) from missing


class OrderTable(Table):
    """The records in one database: for orders, and for ``locks prune``.

    ``using``: the alias of the database; None: the routers choose. Raises BackendUnavailable.
    """

    def __init__(self, using: str | None) -> None:
        self._using = self._written = using

    @property
    def using(self) -> str:
        """The database in which records are written. Read this in the thread of the request first:
        a router may read its ``threading.local``. The router is asked once, so an order ends where
        it began."""
        if self._written is None:
            self._written = router.db_for_write(OrderRecord)
        return self._written

    def find(self, key: str, *, fresh: bool) -> Record | None:
        alias = self.using if fresh or self._using else router.db_for_read(OrderRecord)
        with typed_errors(alias):
            return rows.find(Sql(connections[alias]), key)

    @contextmanager
    def begin(self) -> Iterator[Sql]:
        with typed_errors(self.using), transaction.atomic(using=self.using, durable=True):
            yield Sql(connections[self.using])


def written_in(using: str | None) -> str:
    """The database in which records are written, outside of a request. Raises ConfigurationError if
    a router fails there."""
    try:
        return OrderTable(using).using
    except Exception as error:  # the project's routers run here
        raise ConfigurationError(
            f"DATABASE_ROUTERS name no database for the records of orders outside of a request: "
            f"{type(error).__name__}"
        ) from error


class Sql:
    """The connection of an alias, as ``lockkit.orders.rows`` uses it."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection
        self.vendor = connection.vendor

    def run(self, *steps: Step, commit: bool = False) -> Any:
        connection = self._connection
        if self.vendor == "postgresql":
            connection.validate_no_broken_transaction()
            if not connection.in_atomic_block:
                connection.close_if_health_check_failed()
                connection.ensure_connection()
            watched = connection.execute_wrappers or connection.queries_logged
            backend: Any = type(connection)
            guarded = "cursor" in vars(connection)  # as a TestCase guards what it may not use
            plain = not watched and not guarded and _is_djangos(backend)
            if plain and is_plain(connection.connection):
                commit = commit and self._may_commit()
                with connection.wrap_database_errors:
                    return rows.send(connection.connection, steps, commit=commit)
        with connection.cursor() as cursor:
            for sql, parameters in steps:
                cursor.execute(sql, parameters)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else cursor.rowcount

    def _may_commit(self) -> bool:
        """Whether COMMIT may be sent along with the statements. It may not inside a test's block,
        nor if until="commit" has replaced the connection's ``commit``."""
        connection = self._connection
        is_outermost = len(connection.atomic_blocks) == 1 and connection.commit_on_exit
        return is_outermost and "commit" not in vars(connection)


@cache
def _is_djangos(kind: type[Any]) -> bool:
    """False if a backend adds to cursors or COMMIT, as django-tenants does to choose the schema."""
    added_to = ("cursor", "_cursor", "make_cursor", "create_cursor", "commit", "_commit")
    return all(getattr(kind, each).__module__.startswith("django.") for each in added_to)


@contextmanager
def typed_errors(using: str) -> Iterator[None]:
    """Raise lockkit's errors in place of the database's, such as DuplicateKeyError."""
    try:
        yield
    except (DatabaseError, InterfaceError) as error:
        from lockkit.stores.sql.vendors import unavailable

        remedy = f"run 'manage.py migrate lockkit_django --database {using}'"
        raise typed(error, unavailable, remedy) from error
