"""Stock and sales. Nothing here keeps an order from being made twice."""

from __future__ import annotations

from django.db import models


class Stock(models.Model):
    sku = models.CharField(max_length=50, primary_key=True)
    units = models.IntegerField()
    fence = models.BigIntegerField(default=0)

    class Meta:
        db_table = "stock"

    def __str__(self) -> str:
        return self.sku


class Sale(models.Model):
    order_id = models.CharField(max_length=255)
    sku = models.CharField(max_length=50)

    class Meta:
        db_table = "sale"

    def __str__(self) -> str:
        return self.order_id
