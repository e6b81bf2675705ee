"""What the views of the tests change."""

from __future__ import annotations

from django.db import models

from lockkit_django.fencing import FencedModel


class Sale(models.Model):
    sku = models.CharField(max_length=300)

    def __str__(self) -> str:
        return self.sku


class Stock(FencedModel):
    sku = models.CharField(max_length=40, unique=True)
    count = models.IntegerField()

    def __str__(self) -> str:
        return self.sku
