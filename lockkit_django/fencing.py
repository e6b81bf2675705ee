"""Rows that a stale holder cannot write: the public names of ``lockkit_django.leases.fencing``."""

from lockkit_django.leases.fencing import FencedManager, FencedModel, FencedQuerySet

__all__ = ["FencedManager", "FencedModel", "FencedQuerySet"]
