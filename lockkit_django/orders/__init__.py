"""Orders exactly once, in Django: see ``lockkit_django.middleware`` and docs/orders.md.

>>> from lockkit_django.orders import IdempotentMixin, idempotent
"""

from __future__ import annotations

from lockkit_django.orders.opened import OpenOrder, open_order
from lockkit_django.orders.views import IdempotentMixin, idempotent

__all__ = ["IdempotentMixin", "OpenOrder", "idempotent", "open_order"]
