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
    """A query set whose writes are fenced once ``fenced`` has given it a lease."""

    _lease: BaseLease | None = None

    def fenced(self, lease: BaseLease) -> Self:
        """The same rows; this lease fences ``update()``, ``bulk_update()`` and ``delete()``.

        If a later holder has written one of the rows, or the lease is already lost, they raise
        LeaseLost and write nothing. A lease that others may share raises ConfigurationError.
        ``create()``, ``get_or_create()`` and ``bulk_create()`` give new rows the lease's token.
        They are never refused, because a missing row has no token to compare.
        ``update_or_create()`` and ``bulk_create(update_conflicts=True)`` raise ConfigurationError,
        because they would write over existing rows. ``&``, ``|`` and ``^`` keep the lease of either
        side. They raise ConfigurationError for two different leases, and if the result would be a
        plain query set. ``save()`` of an instance is not fenced, but never lowers the fence.
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
        """The rows to write, in one query set or several. LeaseLost if a later holder wrote one."""
        token = token_of(lease)
        self._for_write = True  # otherwise a router may choose another database for reads
        plain = self.using(self.db)
        plain._lease = None
        rows = plain.filter(fence__lte=token)
        with transaction.atomic(using=plain.db):
            if rows._is_one_statement(deletes=deletes):
                yield [rows]
                newer = plain.filter(fence__gt=token)
                if connections[plain.db].vendor == "mysql":
                    newer = newer.select_for_update()  # otherwise it reads an older snapshot
                if newer.exists():
                    raise stale(lease)
            else:
                yield plain._locked(lease, deletes=deletes)

    def _is_one_statement(self, *, deletes: bool) -> bool:
        """Whether Django puts the condition into the statement that writes. That one waits for
        another writer of the row, and then compares again. For several tables, or to collect what
        to delete, Django puts the condition into a SELECT before it, which does not wait.
        """
        if not connections[self.db].features.has_select_for_update:
            return True  # SQLite: only one transaction writes at a time
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
        return self._keep_lease(other, super().__and__(other))

    def __or__(self, other: Any) -> Self:
        return self._keep_lease(other, super().__or__(other))

    def __xor__(self, other: Any) -> Self:
        return self._keep_lease(other, super().__xor__(other))

    def _keep_lease(self, other: Any, combined: Self) -> Self:
        """Give the result the lease of either side. Django's result copies one side, or is new."""
        found = (self._lease, getattr(other, "_lease", None))
        leases = [lease for lease in found if lease is not None]
        if not leases:
            return combined
        if leases[0] is not leases[-1] or not isinstance(combined, FencedQuerySet):
            raise _keeps_no_lease()
        return combined.fenced(leases[0])

    def _after_plain(self, other: object) -> Any:
        """``other & self``: ``other`` is a plain query set, and the result would be one, too."""
        if self._lease is None:
            return NotImplemented
        raise _keeps_no_lease()

    __rand__ = __ror__ = __rxor__ = _after_plain

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
    """The column ``fence``, which no UPDATE lowers. Migrations name a plain BigIntegerField."""

    def get_placeholder(self, _: object, compiler: SQLCompiler, connection: Any) -> str:
        """In an UPDATE, keep the larger of the row's fence and the given one. ``save()`` gives the
        old fence if the instance was read before a later holder wrote."""
        if not isinstance(compiler, SQLUpdateCompiler):
            return "%s"
        greatest = "MAX" if connection.vendor == "sqlite" else "GREATEST"
        return f"{greatest}({connection.ops.quote_name(self.column)}, %s)"

    def get_placeholder_sql(
        self, value: Any, compiler: SQLCompiler, connection: Any
    ) -> tuple[str, Sequence[Any]]:
        """The same for Django 6.1 and later, which calls this method instead."""
        placeholder = self.get_placeholder(value, compiler, connection)
        if not hasattr(value, "as_sql"):
            return placeholder, (value,)
        sql, parameters = compiler.compile(value)
        return placeholder % sql, parameters

    def deconstruct(self) -> Any:
        name, _, args, options = super().deconstruct()
        return name, "django.db.models.BigIntegerField", args, options


class FencedModel(models.Model):
    """Base class of models with fenced rows; ``makemigrations`` adds the column ``fence``.

    Guarantee and limit are those of ``lockkit.fencing``: all code that writes these rows must do so
    through ``fenced``, under locks of the same name. ``save()``, ``update()`` and ``bulk_update()``
    without a lease are not refused, but never lower the fence, whichever manager runs them: a stale
    holder stays refused. Migrations, your own SQL, and upserts of other managers that name the
    fence can lower it.
    """

    fence = _Fence(default=0, editable=False)

    objects = FencedManager()

    class Meta:
        abstract = True


def _keeps_no_lease() -> ConfigurationError:
    return ConfigurationError(
        "the query set that & | ^ makes of these would not be fenced by the lease: "
        "combine them first, and call fenced(lease) last"
    )


def _overwrites(method: str) -> ConfigurationError:
    return ConfigurationError(
        f"{method} cannot be fenced: it writes over an existing row, whoever wrote it last; "
        "update() rows that exist and create() those that do not"
    )
