"""The Django settings, typed and validated: LOCKKIT and LOCKKIT_VIEWS.

They are read when they are first needed and again after ``override_settings``. A mistake raises
ConfigurationError that names the key and the remedy; ``manage.py check`` shows it at the start.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from django.conf import ENVIRONMENT_VARIABLE, settings
from django.core.signals import setting_changed

from lockkit.model.errors import ConfigurationError
from lockkit.model.settings import AliasSettings, read_settings
from lockkit.web.view_lock import ViewSettings, read_view_settings

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

T = TypeVar("T")

DEFAULT_LOCATION = "django://default"
"""With nothing configured, the project's own database keeps the locks."""


def kept(read: Callable[[], T]) -> _lru_cache_wrapper[T]:
    """Keep what a function makes of the settings until ``override_settings`` changes one."""
    cached = cache(read)
    setting_changed.connect(lambda **_: cached.cache_clear(), weak=False)
    return cached


def need_settings(scheme: str) -> None:
    """Raises ConfigurationError where there are no settings of Django, or wrong ones."""
    try:
        settings.INSTALLED_APPS  # noqa: B018  the first look imports them
    except Exception as error:
        unread = f"{ENVIRONMENT_VARIABLE} leads to none ({type(error).__name__}): correct it"
        remedy = unread if os.environ.get(ENVIRONMENT_VARIABLE) else f"set {ENVIRONMENT_VARIABLE}"
        raise ConfigurationError(
            f"{scheme}:// needs Django's settings: {remedy}, or use 'manage.py locks'"
        ) from error


def lock_settings() -> dict[str, AliasSettings]:
    """The aliases of LOCKKIT. The environment variable LOCKKIT_URL overrides the default's URL."""
    return read_settings(getattr(settings, "LOCKKIT", None), default_location=DEFAULT_LOCATION)


def known_aliases() -> set[str]:
    """The names of the aliases; none if LOCKKIT is wrong, which a system check reports."""
    try:
        return set(lock_settings())
    except ConfigurationError:
        return set()


@kept
def view_settings() -> ViewSettings:
    """LOCKKIT_VIEWS."""
    return read_view_settings(getattr(settings, "LOCKKIT_VIEWS", None))
