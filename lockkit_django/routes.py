"""The views that URLs lead to, for the system checks: they see what was decorated how."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from django.conf import settings
from django.urls import URLPattern, URLResolver, get_resolver

__all__ = ["routed_views"]


def routed_views() -> list[Callable[..., Any]]:
    """Those of ROOT_URLCONF, which is imported; none if it cannot be: Django's checks say so."""
    if not getattr(settings, "ROOT_URLCONF", None):
        return []
    try:
        return list(_below(get_resolver()))
    except Exception:  # noqa: BLE001  the project's modules run here
        return []


def _below(resolver: URLResolver) -> Iterator[Callable[..., Any]]:
    for entry in resolver.url_patterns:
        if isinstance(entry, URLPattern):
            yield entry.callback
        else:
            yield from _below(entry)
