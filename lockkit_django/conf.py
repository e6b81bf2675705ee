"""The Django settings, typed and validated: LOCKKIT and LOCKKIT_VIEWS.

They are read when they are first needed and again after ``override_settings``. A mistake raises
ConfigurationError that names the key and the remedy; ``manage.py check`` reports it earlier.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from django.conf import ENVIRONMENT_VARIABLE, settings
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from lockkit.model.errors import ConfigurationError
from lockkit.model.settings import AliasSettings, read_settings
from lockkit.web.view_lock import ViewSettings, read_view_settings

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

T = TypeVar("T")

DEFAULT_LOCATION = "django://default"
"""With nothing configured, the project's own database keeps the locks."""


def kept(read: Callable[[], T]) -> _lru_cache_wrapper[T]:
    """Cache what a function returns, until ``override_settings`` changes any setting."""
    cached = cache(read)
    setting_changed.connect(lambda **_: cached.cache_clear(), weak=False)
    return cached


def need_settings(scheme: str) -> None:
    """Raise ConfigurationError if Django has no settings, or if they cannot be loaded.

    ``scheme``: of the location that needs them, for the error text.
    """
    try:
        settings.INSTALLED_APPS  # noqa: B018  the first access imports the settings
    except Exception as error:
        fault = f"names settings that cannot be loaded ({type(error).__name__}): correct it"
        unread = f"{ENVIRONMENT_VARIABLE} {fault}"
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
    """LOCKKIT_VIEWS, validated. Raises ConfigurationError."""
    return read_view_settings(getattr(settings, "LOCKKIT_VIEWS", None))


@kept
def middleware() -> set[str]:
    """The classes in MIDDLEWARE, and those that they are derived from, as dotted paths."""
    return {each for path in settings.MIDDLEWARE for each in classes_at(path)}


def classes_at(path: str) -> set[str]:
    """The path of a middleware, and the paths of its class and of the classes above that."""
    bases = getattr(imported(path), "__mro__", ())
    return {path, *(f"{each.__module__}.{each.__qualname__}" for each in bases)}


def imported(path: str) -> Any:
    """What the path leads to. None if it cannot be imported: then Django reports that itself."""
    try:
        return import_string(path)
    except ImportError:
        return None
