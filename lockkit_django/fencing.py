"""``FencedModel``: rows that a stale holder cannot write. See ``lockkit.fencing``.

>>> from django.db.models import F                                        # doctest: +SKIP
>>> name = lockkit.name("stock:{sku}", sku=sku)                           # doctest: +SKIP
>>> with locks["default"].lock(name).acquire() as lease:                  # doctest: +SKIP
...     Stock.objects.fenced(lease).filter(sku=sku).update(count=F("count") - 1)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar

from django.db import connections, models, transaction
from django.db.models.deletion import Collector
from django.db.models.sql.compiler import SQLCompiler, SQLUpdateCompiler

from lockkit.fencing import COLUMN, stale, token_of
from lockkit.model.errors import ConfigurationError

if TYPE_CHECKING:
    from lockkit.leases.lease import BaseLease

M = TypeVar("M", bound=models.Model)


class FencedQuerySet(models.QuerySet[M]):
    """A query set whose writes may be made in the name of a lease."""

    _lease: BaseLease | None = None

    def fenced(self, lease: BaseLease) -> Self:
        """``update()``, ``bulk_update()`` and ``delete()`` of the result write only what no later
        holder has written.

        If a later holder has written one of the rows, or the lease is already lost, they raise
        LeaseLost and write nothing. A lease that others may share raises ConfigurationError.
        ``create()``, ``get_or_create()`` and ``bulk_create()`` give new rows the lease's token.
        They are never refused, because a missing row has no token to compare.
        ``update_or_create()`` and ``bulk_create(update_conflicts=True)`` raise ConfigurationError,
        because they would write over existing rows. What ``&``, ``|`` and ``^`` make has the lease
        of either side; two leases raise ConfigurationError, and so does a plain query set as the
        result. ``save()`` of the instances is not fenced, but never lowers the fence.
        """
        clone = self.all()
        clone._lease = lease
        return clone

    def update(self, **values: Any) -> int:
        if self._lease is None:
            return super().update(**values)
        with self._refusing(self._lease) as parts:
            values[COLUMN] = self._lease.fencing_token
            return sum(rows.update(**values) for rows in parts)

    def delete(self) -> tuple[int, dict[str, int]]:
        if self._lease is None:
            return super().delete()
        deleted: Counter[str] = Counter()
        with self._refusing(self._lease, deletes=True) as parts:
            for rows in parts:
                deleted.update(rows.delete()[1])
        return deleted.total(), dict(deleted)

    def create(self, **values: Any) -> M:
        if self._lease is None:
            return super().create(**values)
        return super().create(**values, fence=token_of(self._lease))

    def bulk_create(  # noqa: PLR0917  as Django's
        self,
        objs: Iterable[M],
        batch_size: int | None = None,
        ignore_conflicts: bool = False,
        update_conflicts: bool = False,
        update_fields: Collection[str] | None = None,
        unique_fields: Collection[str] | None = None,
    ) -> list[M]:
        if update_conflicts and COLUMN in (update_fields or ()):
            raise ConfigurationError(
                f"bulk_create(update_conflicts=True) would lower the fence of what a later holder "
                f"has written: leave {COLUMN!r} out of update_fields"
            )
        if self._lease is not None:
            if update_conflicts:
                raise _overwrites("bulk_create(update_conflicts=True)")
            objs, token = list(objs), token_of(self._lease)
            for row in objs:
                row.fence = token  # type: ignore[attr-defined]  # a FencedModel
        return super().bulk_create(
            objs, batch_size, ignore_conflicts, update_conflicts, update_fields, unique_fields
        )

    def update_or_create(self, *args: Any, **values: Any) -> tuple[M, bool]:
        if self._lease is not None:
            raise _overwrites("update_or_create()")
        return super().update_or_create(*args, **values)

    delete.queryset_only = True  # type: ignore[attr-defined]  # as Django's: objects has no delete

    @contextmanager
    def _refusing(self, lease: BaseLease, *, deletes: bool = False) -> Iterator[list[Self]]:
        """The rows that may be written, mostly in one part; LeaseLost if there are others."""
        token = token_of(lease)
        self._for_write = True  # a router may have us read elsewhere
        plain = self.using(self.db)
        plain._lease = None
        rows = plain.filter(fence__lte=token)
        with transaction.atomic(using=plain.db):
            if rows._is_one_statement(deletes=deletes):
                yield [rows]
                newer = plain.filter(fence__gt=token)
                if connections[plain.db].vendor == "mysql":
                    newer = newer.select_for_update()  # else it looks at an older snapshot
                if newer.exists():
                    raise stale(lease)
            else:
                yield plain._locked(lease, deletes=deletes)

    def _is_one_statement(self, *, deletes: bool) -> bool:
        """Whether the condition is in the statement that writes: it waits for another writer of the
        row, and then compares again. For several tables, or to collect what to delete, Django puts
        the condition into a SELECT before it, which does not wait.
        """
        if not connections[self.db].features.has_select_for_update:
            return True  # SQLite: one writes at a time
        inherited = len({field.model for field in self.model._meta.concrete_fields}) > 1
        if inherited or self.query.count_active_tables() > 1:
            return False
        return not deletes or Collector(self.db, origin=self).can_fast_delete(self)

    def _locked(self, lease: BaseLease, *, deletes: bool) -> list[Self]:
        """These rows, locked against other writers, in as few parts as statements can name.

        A separate query locks them: grouped or distinct rows cannot be locked.
        """
        connection = connections[self.db]
        weak = not deletes and connection.features.has_select_for_no_key_update
        found = models.QuerySet[M](self.model, using=self.db).filter(pk__in=self.values("pk"))
        locked = found.order_by("pk").select_for_update(no_key=weak).values_list("pk", "fence")
        keys = []
        for key, fence in locked:
            if fence > lease.fencing_token:
                raise stale(lease)
            keys.append(key)
        pk = self.model._meta.pk
        size = connection.ops.bulk_batch_size([pk, pk], keys) or 1
        return [self.filter(pk__in=keys[i : i + size]) for i in range(0, len(keys) or 1, size)]

    def __and__(self, other: Any) -> Self:
        return self._in_one_name(other, super().__and__(other))

    def __or__(self, other: Any) -> Self:
        return self._in_one_name(other, super().__or__(other))

    def __xor__(self, other: Any) -> Self:
        return self._in_one_name(other, super().__xor__(other))

    def _in_one_name(self, other: Any, combined: Self) -> Self:
        """Give the result the lease of either side: Django copies a side, or makes a new one."""
        found = (self._lease, getattr(other, "_lease", None))
        leases = [lease for lease in found if lease is not None]
        if not leases:
            return combined
        if leases[0] is not leases[-1] or not isinstance(combined, FencedQuerySet):
            raise _keeps_no_lease()
        return combined.fenced(leases[0])

    def _below_another(self, other: object) -> Any:
        """``other`` is a query set of Django's own class, and so would be the result."""
        if self._lease is None:
            return NotImplemented
        raise _keeps_no_lease()

    __rand__ = __ror__ = __rxor__ = _below_another

    def _clone(self) -> Self:
        clone: Self = super()._clone()  # type: ignore[misc]
        clone._lease = self._lease
        return clone


class FencedManager(models.Manager.from_queryset(FencedQuerySet)):  # type: ignore[misc]
    """``objects`` of a FencedModel."""

    if TYPE_CHECKING:

        def fenced(self, lease: BaseLease) -> FencedQuerySet[Any]: ...


if TYPE_CHECKING:
    _BigInteger = models.BigIntegerField[int, int]
else:
    _BigInteger = models.BigIntegerField  # generic in the stubs only


class _Fence(_BigInteger):
    """In a migration it is a plain BigIntegerField."""

    def get_placeholder(self, _: object, compiler: SQLCompiler, connection: Any) -> str:
        """No UPDATE lowers the fence: an instance that was read before a later holder wrote has the
        old fence, and another writer may raise it meanwhile."""
        if not isinstance(compiler, SQLUpdateCompiler):
            return "%s"
        greatest = "MAX" if connection.vendor == "sqlite" else "GREATEST"
        return f"{greatest}({connection.ops.quote_name(self.column)}, %s)"

    def get_placeholder_sql(
        self, value: Any, compiler: SQLCompiler, connection: Any
    ) -> tuple[str, Sequence[Any]]:
        """The same, as Django asks for it from 6.1 on."""
        placeholder = self.get_placeholder(value, compiler, connection)
        if not hasattr(value, "as_sql"):
            return placeholder, (value,)
        sql, parameters = compiler.compile(value)
        return placeholder % sql, parameters

    def deconstruct(self) -> Any:
        name, _, args, options = super().deconstruct()
        return name, "django.db.models.BigIntegerField", args, options


class FencedModel(models.Model):
    """Inherit from it; ``makemigrations`` adds the column ``fence``.

    Guarantee and limit are those of ``lockkit.fencing``: all who write these rows must write them
    through ``fenced``, under locks of the same name. ``save()``, ``update()`` and ``bulk_update()``
    without a lease are not refused, but never lower the fence, whatever the manager: a stale holder
    stays refused. Limit: migrations, SQL, and upserts of other managers that name the fence.
    """

    fence = _Fence(default=0, editable=False)

    objects = FencedManager()

    class Meta:
        abstract = True


def _keeps_no_lease() -> ConfigurationError:
    return ConfigurationError(
        "the query set that & | ^ makes of these would not write in the name of the lease: "
        "combine them first, and call fenced(lease) last"
    )


def _overwrites(method: str) -> ConfigurationError:
    return ConfigurationError(
        f"{method} cannot be fenced: it writes over a row that is there, whoever wrote it last; "
        "update() what is there and create() what is not"
    )
