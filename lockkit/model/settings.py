"""Settings: a mapping of aliases, like Django's CACHES, validated before anything connects."""

import os
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from lockkit.model.checks import (
    Check,
    check_count,
    check_location,
    check_timeout,
    check_ttl,
    nearest,
    optional,
    read_mapping,
    required,
    wrong,
)
from lockkit.model.errors import ConfigurationError
from lockkit.model.options import check_options

DEFAULT_ALIAS = "default"
URL_VARIABLE = "LOCKKIT_URL"
"""The environment variable that overrides the LOCATION of the default alias everywhere."""


class AliasSettings(NamedTuple):
    """One alias, validated. Durations are seconds."""

    alias: str = DEFAULT_ALIAS
    location: str = "memory://"
    backend: str | None = None
    key_prefix: str = "lockkit"
    ttl: float = 30.0
    acquire_timeout: float | None = 10.0
    max_hold: float | None = 600.0
    max_queue: int | None = 100
    options: Mapping[str, Any] = MappingProxyType({})
    connects: bool = False  #: made by ``connect()``, not for an alias

    def __repr__(self) -> str:
        """Without location and options, which may hold a password."""
        return f"AliasSettings({self.alias!r}, {self.shown_location!r})"

    @property
    def title(self) -> str:
        """The name of these settings in errors."""
        return "connect()" if self.connects else f"the lock alias {self.alias!r}"

    @property
    def place(self) -> str:
        """The name of the location in errors."""
        return "the URL" if self.connects else f"the LOCATION of {self.title}"

    @property
    def scheme(self) -> str:
        """The part before ``://``. Empty if the location is not a URL: it may be a password."""
        match = re.match(URL, self.location)
        return match[1] if match else ""

    @property
    def is_plain(self) -> bool:
        """Whether lock names are the keys of a Redis server (``?protocol=plain``), so that programs
        without lockkit can lock the same names."""
        return _is_plain(self.location)

    @property
    def shown_location(self) -> str:
        """The location without user, password and query, so that it may be logged."""
        rest = self.location.partition("://")[2]
        where, _, query = rest.partition("?")
        if "@" in query:  # an unescaped ? in a password: nobody knows where that ends
            where = "…"
        return f"{self.scheme}://{where.rpartition('@')[2]}" if self.scheme else ""


Settings = Mapping[str, AliasSettings]


def _is_plain(location: str) -> bool:
    return "protocol=plain" in location.partition("?")[2].split("&")


def default_prefix(location: str) -> str:
    """The default KEY_PREFIX at this location. Empty for plain keys: see ``is_plain``."""
    return "" if _is_plain(location) else "lockkit"


def read_settings(
    mapping: Mapping[str, Any] | None,
    *,
    default_location: str,
    environ: Mapping[str, str] = os.environ,
    url: object = None,
) -> dict[str, AliasSettings]:
    """Validate a settings mapping. Errors name the key and the remedy.

    The default alias gets ``default_location`` if it has no location of its own. ``url``, the
    LOCKKIT_URL of an app's settings, overrides both. The environment variable overrides all three.
    Options beside a location that is overridden are ignored. Options without one are for the app's
    URL, or else for that of the environment, but not for ``memory://``, which has none.
    """
    if mapping is None:
        mapping = {}
    if not isinstance(mapping, Mapping):
        # Not shown: a URL in the wrong place may hold a password.
        raise ConfigurationError(
            "LOCKKIT must map aliases to settings, as in "
            "LOCKKIT = {'default': 'redis://127.0.0.1:6379/0'}"
        )
    for key in mapping:
        if key in CHECKS:
            raise ConfigurationError(
                f"LOCKKIT maps aliases to settings: put {key!r} below one, as in "
                f"LOCKKIT = {{'default': {{{key!r}: …}}}}"
            )
    aliases = {DEFAULT_ALIAS: default_location, **mapping}
    location = _chosen(environ, url)
    unsaid = default_location
    if location is not None and not location.startswith("memory:"):
        unsaid = url if url and isinstance(url, str) else location
    settings = {a: _read_alias(a, entry, unsaid) for a, entry in aliases.items()}
    if location is not None:
        settings[DEFAULT_ALIAS] = _relocated(settings[DEFAULT_ALIAS], location)
    elif mapping and DEFAULT_ALIAS not in mapping:
        raise _without_default(mapping)
    return settings


def _without_default(aliases: Mapping[str, Any]) -> ConfigurationError:
    """Most code locks in the default alias. If that is misspelt, such code would lock in a store
    that nobody chose."""
    close = nearest(DEFAULT_ALIAS, aliases)
    hint = f"is {close!r} a misspelling?" if close else "give it a URL."
    return ConfigurationError(
        f"LOCKKIT has no alias {DEFAULT_ALIAS!r}: {hint} "
        f"{{{DEFAULT_ALIAS!r}: {{}}}} is the store that is used without settings"
    )


def _chosen(environ: Mapping[str, str], url: object) -> str | None:
    url = environ.get(URL_VARIABLE, url)
    if url == "":
        raise empty_variable("the environment" if URL_VARIABLE in environ else "the app's config")
    if url is not None and not isinstance(url, str):
        raise ConfigurationError(f"{URL_VARIABLE} must be a URL, not {type(url).__name__}")
    check_location(URL_VARIABLE, url)
    return url


def empty_variable(where: str) -> ConfigurationError:
    return ConfigurationError(
        f"{URL_VARIABLE} is empty in {where}, so locks would be in a store that nobody chose. "
        "Give it a URL, or unset it"
    )


def state_directory() -> str:
    """The path of the directory for lockkit's own files, which may not exist yet. Empty if the user
    has no home: a path below the working directory would not be the same for two jobs."""
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):  # the XDG specification says to ignore a relative path
        state = os.path.expanduser("~/.local/state")
    return os.path.join(os.path.realpath(state), "lockkit") if os.path.isabs(state) else ""


def settings_from_url(location: str, **options: Any) -> AliasSettings:
    """The settings of ``lockkit.connect(url, ttl=…, key_prefix=…, options={…})``."""
    try:
        check_options("connect()", options, [key.lower() for key in CHECKS if key != "LOCATION"])
    except ConfigurationError as error:
        stop = "" if str(error).endswith("?") else "."
        raise ConfigurationError(
            f"{error}{stop} Options of the store go into options={{…}}; host, database and "
            "password into the URL"
        ) from None
    values = {k: CHECKS[k.upper()](f"{k} of connect()", value) for k, value in options.items()}
    if not isinstance(location, str):
        raise ConfigurationError(
            "connect() needs a URL, such as 'redis://127.0.0.1:6379/0', or a client as client=…"
        )
    check_location("the URL", location)
    values.setdefault("key_prefix", default_prefix(location))
    return AliasSettings(DEFAULT_ALIAS, location, connects=True, **values)


# Compiled at their first use, because most are never used.
DOTTED = r"\w+(\.\w+)*[.:]\w+"
URL = r"([A-Za-z][A-Za-z0-9+.-]*)://"
PREFIX = r"[ -z|~]{0,64}"


def _read_alias(alias: object, entry: object, default_location: str) -> AliasSettings:
    """An entry is a mapping or, for short, a URL. Errors do not show it: it may hold a password."""
    if not isinstance(alias, str) or not alias:
        raise wrong("a key of LOCKKIT", alias, "an alias, such as 'default'")
    where = f"LOCKKIT[{alias!r}]"
    given = {"LOCATION": entry} if isinstance(entry, str) else entry
    values = read_mapping(where, given, CHECKS, "a URL or a mapping")
    if not isinstance(values.get("location"), str | None):
        kind = type(values["location"]).__name__
        raise ConfigurationError(
            f"{where}['LOCATION'] is of type {kind}; it must be one URL, which may name several "
            "hosts, as a string"
        )
    default = "" if values.get("backend") else default_location if alias == DEFAULT_ALIAS else None
    location = values.pop("location", default)
    if not isinstance(location, str):
        raise ConfigurationError(f"{where} needs a LOCATION, such as 'redis://127.0.0.1:6379/0'")
    values.setdefault("key_prefix", default_prefix(location))
    return AliasSettings(alias, location, **values)


def _relocated(settings: AliasSettings, url: str) -> AliasSettings:
    """The same settings for another store: BACKEND and OPTIONS do not apply to that one."""
    if settings.location == url:
        return settings
    prefix = settings.key_prefix
    if prefix == default_prefix(settings.location):
        prefix = default_prefix(url)
    return settings._replace(location=url, key_prefix=prefix, backend=None, options={})


def _dotted(key: str, value: object) -> str | None:
    if value is None or (isinstance(value, str) and re.fullmatch(DOTTED, value)):
        return value
    # The value is not shown: it may be a URL.
    remedy = "it must be that of a Store class of your own; leave it out if LOCATION is a URL"
    raise ConfigurationError(f"{key} is not a dotted path; {remedy}")


def _prefix(key: str, value: object) -> str:
    if isinstance(value, str) and re.fullmatch(PREFIX, value):
        return value
    raise wrong(key, value, "at most 64 printable ASCII characters without braces")


def _options(key: str, value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{key} is of type {type(value).__name__}; it must be a mapping")
    return dict(value)


CHECKS: dict[str, Check] = {
    "LOCATION": check_location,  # see _read_alias, too
    "BACKEND": _dotted,
    "KEY_PREFIX": _prefix,
    "TTL": check_ttl,
    "ACQUIRE_TIMEOUT": check_timeout,
    "MAX_HOLD": optional(required(check_timeout, "seconds, or None for no limit")),
    "MAX_QUEUE": check_count,
    "OPTIONS": _options,
}
