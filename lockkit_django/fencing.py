"""``FencedModel``: rows that a stale holder cannot write. See ``lockkit.fencing``.

>>> from django.db.models import F                                        # doctest: +SKIP
>>> with locks["default"].lock(f"stock:{sku}").acquire() as lease:        # doctest: +SKIP
...     Stock.objects.fenced(lease).filter(sku=sku).update(count=F("count") - 1)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar

from django.db import models, transaction

from lockkit.fencing import stale, token_of

if TYPE_CHECKING:
    from lockkit.lease import BaseLease

__all__ = ["FencedManager", "FencedModel", "FencedQuerySet"]

M = TypeVar("M", bound=models.Model)


class FencedQuerySet(models.QuerySet[M]):
    """A query set whose writes may be made in the name of a lease."""

    _lease: BaseLease | None = None

    def fenced(self, lease: BaseLease) -> Self:
        """``update()`` and ``delete()`` of the result write only what no later holder has written.

        If one of the rows was, they raise LeaseLost and write nothing; so they do when the lease
        is lost already. A lease that others may share is refused with a ConfigurationError.
        ``save()`` of the instances is not fenced.
        """
        clone = self.all()
        clone._lease = lease
        return clone

    def update(self, **values: Any) -> int:
        if self._lease is None:
            return super().update(**values)
        with self._refusing(self._lease) as rows:
            return rows.update(**values, fence=self._lease.fencing_token)

    def delete(self) -> tuple[int, dict[str, int]]:
        if self._lease is None:
            return super().delete()
        with self._refusing(self._lease) as rows:
            return rows.delete()

    update.alters_data = True  # type: ignore[attr-defined]  # as Django's: not for templates
    delete.alters_data = True  # type: ignore[attr-defined]

    @contextmanager
    def _refusing(self, lease: BaseLease) -> Iterator[Self]:
        """The rows that may be written; at the end, LeaseLost if there were others."""
        token = token_of(lease)
        plain = self.all()
        plain._lease = None
        with transaction.atomic(using=self.db):
            yield plain.filter(fence__lte=token)
            if plain.filter(fence__gt=token).exists():
                raise stale(lease)

    def _clone(self) -> Self:
        clone: Self = super()._clone()  # type: ignore[misc]
        clone._lease = self._lease
        return clone


class FencedManager(models.Manager.from_queryset(FencedQuerySet)):  # type: ignore[misc]
    """``objects`` of a FencedModel."""


class FencedModel(models.Model):
    """Inherit from it; ``makemigrations`` adds the column ``fence``.

    Guarantee and limit are those of ``lockkit.fencing``: all who write these rows must write them
    through ``fenced``, under locks of the same name.
    """

    fence = models.BigIntegerField(default=0, editable=False)

    objects = FencedManager()

    class Meta:
        abstract = True
