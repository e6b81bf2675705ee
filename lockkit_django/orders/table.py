"""Records of orders in a Django database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import (
    DataError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    ProgrammingError,
    connections,
    router,
)
from django.db.models import BigIntegerField, Expression, F

from lockkit.model.errors import BackendUnavailable, ConfigurationError
from lockkit.orders import (
    DuplicateKeyError,
    Record,
    StillRunningError,
    dump_headers,
)
from lockkit.orders.databases import MICROSECONDS, claiming, clock_of, is_lock_timeout
from lockkit.orders.record import recorded, unreadable

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models.sql.compiler import SQLCompiler

try:
    from lockkit_django.models import OrderRecord
except RuntimeError as missing:  # Django's word for a model of no installed application
    raise ConfigurationError(
        "orders need 'lockkit_django' in INSTALLED_APPS, and then 'manage.py migrate'"
    ) from missing

__all__ = ["AsyncOrderStore", "Clock", "OrderStore", "typed_errors"]


class Clock(Expression):
    """Microseconds since the epoch, by the clock of the database that is asked."""

    output_field = BigIntegerField()

    def as_sql(
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper
    ) -> tuple[str, tuple[str | int, ...]]:
        return clock_of(connection.vendor), ()


class OrderStore:
    """Finds records, and writes them inside the caller's transaction.

    ``using``: the database; None: as the routers say. Raises BackendUnavailable.
    """

    def __init__(self, using: str | None) -> None:
        self._using = using

    @property
    def using(self) -> str:
        """Where records are written, with the order."""
        return self._using or router.db_for_write(OrderRecord)

    def find(self, key: str, *, fresh: bool) -> Record | None:
        alias = self.using if fresh or self._using else router.db_for_read(OrderRecord)
        with typed_errors():
            rows = OrderRecord.objects.using(alias).annotate(left=F("expires") - Clock())
            try:
                row = rows.filter(key=key).first()
            except (OverflowError, ValueError):  # SQLite keeps anything in a column of numbers
                return unreadable(key)
        return None if row is None else recorded(vars(row), row.left)

    def start(self, record: Record, *, replaces: bool, wait: float) -> None:
        """Insert, in an open transaction. ``replaces``: an expired one with this key goes.

        Raises DuplicateKeyError, and StillRunningError after ``wait`` seconds behind somebody who
        has inserted the key and has not ended.
        """
        connection = connections[self.using]
        execute = partial(_execute, connection)
        with typed_errors(), claiming(connection.vendor, execute, wait):
            try:
                self._insert(record, replaces=replaces)
            except IntegrityError as error:
                raise DuplicateKeyError from error
            except OperationalError as error:
                if is_lock_timeout(error.__cause__):
                    raise StillRunningError from error
                raise

    def _insert(self, record: Record, *, replaces: bool) -> None:
        rows = OrderRecord.objects.using(self.using)
        if replaces:
            rows.filter(key=record.key, expires__lte=Clock()).delete()
        rows.create(key=record.key, created=Clock(), **_columns(record))

    def finish(self, record: Record) -> None:
        """Write what became of a record that was started in this transaction."""
        rows = OrderRecord.objects.using(self.using).filter(key=record.key)
        if rows.update(**_columns(record)) != 1:
            raise RuntimeError("the record of this order was deleted while its view was running")

    def forget(self, key: str) -> None:
        """Delete a record that was started in this transaction."""
        OrderRecord.objects.using(self.using).filter(key=key).delete()


class AsyncOrderStore:
    """Finds records from the event loop, on the thread that has the request's connection."""

    def __init__(self, store: OrderStore) -> None:
        self._store = store

    async def find(self, key: str, *, fresh: bool) -> Record | None:
        find = partial(self._store.find, key, fresh=fresh)
        return await sync_to_async(find, thread_sensitive=True)()


@contextmanager
def typed_errors() -> Iterator[None]:
    try:
        yield
    except (OperationalError, InterfaceError) as error:
        if "no such table" in str(error):
            raise _not_migrated() from error
        raise BackendUnavailable("the database of the order records is not available") from error
    except DataError as error:
        raise BackendUnavailable("the database does not take this order record") from error
    except ProgrammingError as error:
        raise _not_migrated() from error


def _execute(connection: BaseDatabaseWrapper, sql: str) -> Sequence[Any] | None:
    """In the driver's own cursor: after an error Django's refuses what is not a rollback."""
    with (
        connection.wrap_database_errors,
        closing(connection.connection.cursor()) as cursor,
    ):
        cursor.execute(sql)
        row: Sequence[Any] | None = cursor.fetchone() if cursor.description else None
        return row


def _not_migrated() -> ConfigurationError:
    return ConfigurationError(
        "the table of order records cannot be used; run 'manage.py migrate lockkit_django'"
    )


def _columns(record: Record) -> dict[str, object]:
    return {
        "order_id": record.order_id,
        "request": record.request,
        "fingerprint": record.fingerprint,
        "state": str(record.state),
        "status": record.snapshot.status,
        "headers": dump_headers(record.snapshot.headers),
        "body": record.snapshot.body,
        "version": record.version,
        "expires": Clock() + int(record.left * MICROSECONDS),
    }
