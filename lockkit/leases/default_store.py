"""The store of callers that name none: $LOCKKIT_URL, else a file of this user."""

from __future__ import annotations

import os
import warnings
from typing import Any

from lockkit.model.checks import check_location
from lockkit.model.errors import ConfigurationError
from lockkit.model.settings import (
    URL_VARIABLE,
    AliasSettings,
    empty_variable,
    settings_from_url,
    state_directory,
)
from lockkit.stores.registry import settings_for_client

adapter = ""
"""The adapter that is set up in this process, such as "lockkit_django". It sets this itself."""

_told: set[str] = set()


def default_url() -> str:
    """$LOCKKIT_URL; else the embedded store: one SQLite file per user. Raises ConfigurationError
    if the variable is empty, or the user has no home directory for that file."""
    url = os.environ.get(URL_VARIABLE)
    if url == "":
        raise empty_variable("the environment")
    check_location(f"{URL_VARIABLE} in the environment", url)
    directory = state_directory()
    if not (url or directory):
        raise ConfigurationError(
            f"there is no home directory to keep locks in: set {URL_VARIABLE}, HOME or "
            "XDG_STATE_HOME to the same place for all processes that share the locks"
        )
    return url or f"sqlite:///{os.path.join(directory, 'locks.sqlite3')}"


def unchosen(url: str) -> str:
    """The text of a warning that nobody has chosen this store; empty if somebody has, or after the
    first time. A cron job without the variable would lock there, while the others lock elsewhere.
    """
    if URL_VARIABLE in os.environ or url in _told:
        return ""
    _told.add(url)
    return (
        f"{URL_VARIABLE} is not set: locks are kept in {url}, which only this user's processes on "
        "this host share"
    )


def connection_settings(url: str | None, client: object, options: Any) -> AliasSettings:
    """The settings for both ``connect`` functions. Raises ConfigurationError."""
    if client is None:
        return settings_from_url(chosen_url() if url is None else url, **options)
    if url is not None:
        raise ConfigurationError("connect() has a URL and a client: give it one of them")
    return settings_for_client(client, **options)


def chosen_url(*, for_locked: bool = False) -> str:
    """As ``default_url``, with a warning if nobody has chosen the store; and, ``for_locked``, if an
    adapter has a ``locked`` of its own. Each comes once per process and shows the user's line:
    between that and the caller of this function is always one function of lockkit."""
    url = default_url()
    if for_locked and adapter and adapter not in _told:
        _told.add(adapter)
        told = (
            f"lockkit.locked goes by {URL_VARIABLE}, and not by the settings of {adapter}, so it "
            f"may lock elsewhere: write from {adapter} import locked"
        )
        warnings.warn(told, RuntimeWarning, stacklevel=4)
    if text := unchosen(url):
        told = f"{text}. Set it, or give connect() a URL"
        warnings.warn(told, RuntimeWarning, stacklevel=4)
    return url
