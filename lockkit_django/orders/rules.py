"""LOCKKIT_ORDERS, as the engine, and what signs the order IDs of forms."""

from __future__ import annotations

from functools import lru_cache

from django.conf import settings
from django.core.signals import setting_changed

from lockkit.orders import Orders, read_order_settings
from lockkit.orders.forms import FormIds
from lockkit.orders.settings import SOURCE


@lru_cache(maxsize=1)
def order_rules() -> Orders:
    """Raises ConfigurationError."""
    return Orders(read_order_settings(getattr(settings, SOURCE, None)), form_ids())


@lru_cache(maxsize=1)
def form_ids() -> FormIds:
    return FormIds(lambda: [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS])


def _forget(*, setting: str, **_: object) -> None:
    if setting == SOURCE:
        order_rules.cache_clear()


setting_changed.connect(_forget, dispatch_uid="lockkit_django.orders")
