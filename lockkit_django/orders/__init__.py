"""Orders exactly once, in Django: see ``lockkit_django.middleware`` and docs/orders.md.

>>> from lockkit_django.orders import IdempotentMixin, idempotent
"""

from __future__ import annotations

from lockkit_django.orders.idempotent import IdempotentMixin, idempotent
from lockkit_django.orders.open_order import OpenOrder
from lockkit_django.orders.visit import open_order

__all__ = ["IdempotentMixin", "OpenOrder", "idempotent", "open_order"]
