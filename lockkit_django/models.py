"""The tables: records of orders, and the locks if the project's database keeps them."""

from __future__ import annotations

from django.db import models


class OrderRecord(models.Model):
    """The record of one order, written in the transaction in which the order takes effect.

    The columns correspond to ``lockkit.orders.Record``; times are microseconds since the epoch.
    """

    key = models.CharField(primary_key=True, max_length=64, editable=False)
    order_id = models.CharField(max_length=255, editable=False)
    request = models.CharField(max_length=255, editable=False)
    fingerprint = models.CharField(max_length=80, editable=False)
    state = models.CharField(max_length=16, editable=False)
    status = models.PositiveSmallIntegerField(editable=False)
    headers = models.TextField(editable=False)
    body = models.BinaryField(editable=False)
    version = models.PositiveSmallIntegerField(editable=False)
    created = models.BigIntegerField(editable=False)
    expires = models.BigIntegerField(db_index=True, editable=False)

    class Meta:
        db_table = "lockkit_order"
        verbose_name = "order record"

    def __str__(self) -> str:
        return f"{self.order_id} ({self.request})"


class Lock(models.Model):
    """The state of one lock name, for ``django://`` on a server database.

    Only lockkit's own connection writes it, never this model. The columns are explained in
    ``lockkit/stores/sql/sqlite.sql``; an application without Django may share the table.
    """

    id = models.CharField(primary_key=True, max_length=64, editable=False)
    prefix = models.CharField(max_length=64, editable=False)
    name = models.CharField(max_length=255, editable=False)
    version = models.BigIntegerField(editable=False)
    fence = models.BigIntegerField(editable=False)
    state = models.TextField(editable=False)
    updated = models.BigIntegerField(editable=False)

    class Meta:
        db_table = "lockkit_lock"
        verbose_name = "lock"

    def __str__(self) -> str:
        return self.name
