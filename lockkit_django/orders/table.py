"""Records of orders in a Django database, also for ``locks prune``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from django.db import (
    DataError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    ProgrammingError,
    connections,
    router,
    transaction,
)

from lockkit.model.errors import BackendUnavailable, ConfigurationError
from lockkit.orders import DuplicateKeyError, Record, rows

try:
    from lockkit_django.models import OrderRecord
except RuntimeError as missing:  # Django's word for a model of no installed application
    raise ConfigurationError(
        "orders need 'lockkit_django' in INSTALLED_APPS, and then 'manage.py migrate'"
    ) from missing


class OrderTable(rows.Table):
    """Finds records, also for ``locks prune``.

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
            return rows.find(Sql(alias), key)

    @contextmanager
    def begin(self) -> Iterator[Sql]:
        with typed_errors(), transaction.atomic(using=self.using, durable=True):
            yield Sql(self.using)


class Sql:
    """The connection of an alias, as ``lockkit.orders.rows`` uses it."""

    def __init__(self, using: str) -> None:
        self._connection = connections[using]
        self.vendor = self._connection.vendor

    def run(self, sql: str, *parameters: Any) -> Any:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            return cursor.fetchall() if cursor.description else cursor.rowcount

    def say(self, sql: str) -> Sequence[Any] | None:
        """In the driver's own cursor: after an error Django's refuses what is not a rollback."""
        with (
            self._connection.wrap_database_errors,
            closing(self._connection.connection.cursor()) as cursor,
        ):
            cursor.execute(sql)
            row: Sequence[Any] | None = cursor.fetchone() if cursor.description else None
            return row


@contextmanager
def typed_errors() -> Iterator[None]:
    """Raises DuplicateKeyError for a key that is there."""
    try:
        yield
    except IntegrityError as error:
        raise DuplicateKeyError from error
    except (OperationalError, InterfaceError) as error:
        if "no such table" in str(error):
            raise _not_migrated() from error
        raise BackendUnavailable("the database of the order records is not available") from error
    except DataError as error:
        raise BackendUnavailable("the database does not take this order record") from error
    except ProgrammingError as error:
        raise _not_migrated() from error


def _not_migrated() -> ConfigurationError:
    return ConfigurationError(
        "the table of order records cannot be used; run 'manage.py migrate lockkit_django'"
    )
