"""The models that the views of the tests change."""

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


class Supplier(models.Model):
    city = models.CharField(max_length=40)

    def __str__(self) -> str:
        return self.city


class Pallet(FencedModel):
    """Its rows are found by another table's, and deleted together with those of a third."""

    supplier = models.ForeignKey(Supplier, on_delete=models.CASCADE)
    count = models.IntegerField()

    def __str__(self) -> str:
        return f"{self.count} from {self.supplier}"


class ChilledPallet(Pallet):
    degrees = models.IntegerField()
