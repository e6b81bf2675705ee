"""The Django settings, typed and validated: LOCKKIT and LOCKKIT_VIEWS.

They are read when they are first needed and again after ``override_settings``. A mistake raises
ConfigurationError that names the key and the remedy; ``manage.py check`` shows it at the start.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from django.conf import settings
from django.core.signals import setting_changed

from lockkit.model.errors import ConfigurationError
from lockkit.model.settings import AliasSettings, read_settings
from lockkit.web.view_lock import ViewSettings, read_view_settings

DEFAULT_LOCATION = "django://default"
"""With nothing configured, the project's own database keeps the locks."""


def lock_settings() -> dict[str, AliasSettings]:
    """The aliases of LOCKKIT. The environment variable LOCKKIT_URL overrides the default's URL."""
    return read_settings(getattr(settings, "LOCKKIT", None), default_location=DEFAULT_LOCATION)


def known_aliases() -> set[str]:
    """The names of the aliases; none if LOCKKIT is wrong, as a system check of its own says."""
    try:
        return set(lock_settings())
    except ConfigurationError:
        return set()


@lru_cache(maxsize=1)
def view_settings() -> ViewSettings:
    """LOCKKIT_VIEWS."""
    return read_view_settings(getattr(settings, "LOCKKIT_VIEWS", None))


def _forget(*, setting: str, **_: Any) -> None:
    if setting == "LOCKKIT_VIEWS":
        view_settings.cache_clear()


setting_changed.connect(_forget, dispatch_uid="lockkit_django.conf")
