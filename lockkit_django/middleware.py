"""For MIDDLEWARE: ``IdempotentOrderMiddleware`` and ``LockErrors``."""

from lockkit_django.orders.middleware import IdempotentOrderMiddleware
from lockkit_django.web.refusals import LockErrors

__all__ = ["IdempotentOrderMiddleware", "LockErrors"]
