"""What the views of the tests change."""

from __future__ import annotations

from django.db import models


class Sale(models.Model):
    sku = models.CharField(max_length=300)

    def __str__(self) -> str:
        return self.sku
