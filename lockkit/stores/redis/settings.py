"""An alias's settings as connections of redis-py."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from copy import copy
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode

from redis.credentials import CredentialProvider
from redis.exceptions import RedisError

from lockkit.model.checks import (
    Unshown,
    check_count,
    check_flag,
    check_password,
    check_path,
    check_ttl,
    near_option,
    wrong,
)
from lockkit.model.errors import ConfigurationError
from lockkit.model.settings import AliasSettings
from lockkit.stores.contract import reject_unknown_options
from lockkit.stores.servers import current

Connection = Any  # redis-py's connections have no common, typed base

SOCKET_TIMEOUT = 2.0
ENCODE = "; a password with # / ? or @ is percent-encoded there, or goes into OPTIONS['password']"


class Maker:
    """Makes connections as a pool of redis-py would. They are not connected yet; no I/O.

    The pool itself makes ``max_connections`` at most (in newer releases a hundred by default),
    because it is meant to take them back, but lockkit keeps its own. They speak RESP 2,
    whatever the pool speaks: scripts reply with nothing newer, and subscriptions then need no push
    parser. They wait SOCKET_TIMEOUT for a reply if the pool's wait for ever.
    """

    def __init__(self, pool: Any) -> None:
        self._kind = pool.connection_class
        self.arguments: dict[str, Any] = {**pool.connection_kwargs, "protocol": 2}
        if self.arguments.get("socket_timeout") is None:
            self.arguments["socket_timeout"] = SOCKET_TIMEOUT
        for resp3_only in ("maint_notifications_pool_handler", "maint_notifications_config"):
            self.arguments.pop(resp3_only, None)

    def __call__(self) -> Connection:
        return self._kind(**self.arguments)

    def at(self, host: str, port: int) -> Self:
        """Another Maker, of connections to this server."""
        return self.like(self._kind, host=host, port=port)

    def like(self, kind: Any, **arguments: Any) -> Self:
        """Another Maker, of connections of this class, with these arguments beside its own."""
        made = copy(self)
        made._kind = kind
        made.arguments = {**self.arguments, **arguments}
        return made

    def described(self) -> str:
        """The database that the connections use, for people."""
        return f"database {self.arguments.get('db') or 0}"

    def server(self) -> str:
        """The address of the server, without user and password."""
        known = self.arguments
        return known.get("path") or f"{known.get('host', '')}:{known.get('port', '')}"


def maker(
    settings: AliasSettings,
    pool: Any,
    timeout: float = SOCKET_TIMEOUT,
    connect_timeout: float | None = None,
) -> Maker:
    """For the LOCATION and OPTIONS of an alias. ``pool``: the class, blocking or asyncio.
    ``timeout``, ``connect_timeout``: unless the settings say otherwise.

    Raises ConfigurationError.
    """
    _check_address(settings)
    _check_database(settings)
    _check_protocol(settings)
    _check_query(settings)
    options = reject_unknown_options(settings, tuple(OPTIONS))
    for option, value in options.items():
        OPTIONS[option](f"OPTIONS[{option!r}] of {settings.title}", value)
    _check_tls(settings)
    asked = options.pop("password") if callable(options.get("password")) else None
    timeout = options.setdefault("socket_timeout", timeout)
    options.setdefault("socket_connect_timeout", connect_timeout or timeout)
    if _is_verified(settings):
        options.setdefault("ssl_check_hostname", True)  # old versions of redis-py do not
    try:
        made = Maker(pool.from_url(settings.location, **options))
        made()  # finds options in the URL that redis-py does not know
    except (ValueError, TypeError, RedisError):
        raise ConfigurationError(
            f"{settings.place} is not a Redis URL; that of one server looks like "
            f"redis://user:password@host:6379/0, rediss://… or unix:///path?db=0"
            f"{_unescaped(settings)}{_hint(settings)}"
        ) from None
    _check_said_once(settings, made.arguments)
    for option, value in made.arguments.items():
        if option in OPTIONS and option not in settings.options:
            shown = Unshown(value) if isinstance(value, str) else value
            OPTIONS[option](f"{option} in {settings.place}", shown)
    if asked is not None:  # redis-py refuses a provider beside a user's name
        provider = _Credentials(made.arguments.pop("username", None), asked)
        made.arguments["credential_provider"] = provider
    return made


def own_option(
    settings: AliasSettings, option: str, default: object, read: Callable[[str], object]
) -> tuple[Any, AliasSettings]:
    """The value of an option that is not the driver's, from OPTIONS or the URL, and the settings
    without it. ``read`` converts a text of the URL. An option that is given twice raises
    ConfigurationError."""
    location, _, query = settings.location.partition("?")
    words = parse_qsl(query, keep_blank_values=True)
    texts = [text for word, text in words if word == option]
    options = dict(settings.options)
    if len(texts) + (option in options) > 1:
        raise ConfigurationError(f"{settings.title} says {option!r} more than once")
    value = options.pop(option, default)
    if texts:
        value = read(Unshown(texts[0]))
        rest = urlencode([(word, text) for word, text in words if word != option])
        settings = settings._replace(location=f"{location}?{rest}" if rest else location)
    return value, settings._replace(options=options)


class _Credentials(CredentialProvider):
    """Asks for the password at each new connection, so that it can change."""

    def __init__(self, username: str | None, password: Callable[[], object]) -> None:
        self._username = username
        self._password = password

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        password = str(current(self._password))
        return (self._username, password) if self._username else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return self.get_credentials()


def _check_said_once(settings: AliasSettings, arguments: dict[str, Any]) -> None:
    """In redis-py the URL wins: a different value in OPTIONS would be ignored."""
    for option, value in settings.options.items():
        if arguments.get(option) != (None if callable(value) else value):
            raise ConfigurationError(
                f"{settings.place} and its OPTIONS both say {option!r}: say it in one of them"
            )


def _check_tls(settings: AliasSettings) -> None:
    for option in settings.options:
        if option.startswith("ssl_") and not settings.location.startswith("rediss://"):
            raise ConfigurationError(
                f"OPTIONS[{option!r}] of {settings.title} is for TLS: its URL must be one with "
                "TLS, rediss://, rediss+sentinel://, rediss+cluster:// or redlocks://"
            )


def _is_verified(settings: AliasSettings) -> bool:
    """Whether the server has to prove who it is."""
    said = settings.options.get("ssl_cert_reqs", "required")
    is_off = said in {"none", ssl.CERT_NONE} or "ssl_cert_reqs=none" in settings.location
    return settings.location.startswith("rediss://") and not is_off


def is_managed(connection: Connection) -> bool:
    """Whether the connection leads to the master that Sentinels name."""
    pool = getattr(connection, "connection_pool", None)
    return pool is not None and pool.is_master


def _hint(settings: AliasSettings) -> str:
    """The query may hold a password, so it is not shown."""
    if "?" in settings.location:
        near = near_option(settings.location, [*OPTIONS, *BESIDE])
        tls = "ssl_… needs a URL with TLS, such as rediss://"
        return f"; other options of the driver go into OPTIONS, and {tls}{near}"
    return ""


def _unescaped(settings: AliasSettings) -> str:
    """A hint if a password may end the address too early. No piece of it is shown."""
    login = settings.location.partition("://")[2].rpartition("@")[0]
    return ENCODE if settings.location.startswith("redis") and set(login) & set("#/?") else ""


def _check_address(settings: AliasSettings) -> None:
    """A password in ``redis://:#secret@host`` would end the address, and redis-py would ask the
    server on this host."""
    rest = settings.location.partition("://")[2]
    address = re.split("[/?#]", rest, maxsplit=1)[0]
    beyond = rest[len(address) :]
    has_host = address.rpartition("@")[2].strip(":0123456789")
    strays = "@" in (beyond.partition("=")[0] if has_host else beyond)
    if settings.location.startswith("redis") and ("#" in beyond or strays):
        raise ConfigurationError(f"{settings.place} is ended too early by a # / or ?{ENCODE}")


def _check_database(settings: AliasSettings) -> None:
    """The path of redis:// is a number. redis-py takes what it cannot read for database 0."""
    _, _, rest = settings.location.partition("://")
    path = rest.partition("?")[0].partition("/")[2]
    if settings.location.startswith("redis") and path and not (path.isascii() and path.isdecimal()):
        raise ConfigurationError(
            f"{settings.place} must end in the number of a database, "
            f"as redis://host:6379/0 does{_unescaped(settings)}"
        )


def _check_protocol(settings: AliasSettings) -> None:
    """A URL that is shared with a cache may say 2 or 3, which changes nothing here."""
    query = settings.location.partition("?")[2]
    if found := re.search(r"(?:^|&)protocol=(?!(?:2|3)(?:&|$))", query):
        raise ConfigurationError(
            f"{found[0].strip('&=')} in {settings.place} must be "
            "'plain', for keys that other clients lock, too; 2 and 3 change nothing"
        )


def _check_query(settings: AliasSettings) -> None:
    """redis-py ignores an option that is empty, and takes one of two."""
    address, _, query = settings.location.partition("?")
    place, _, path = address.partition("://")[2].partition("/")
    user, _, password = place.rpartition("@")[0].partition(":")
    if not settings.location.startswith("redis"):  # a socket's path
        path = ""
    words = parse_qsl(query, keep_blank_values=True)
    before = {"username": user, "password": password, "db": path}
    said = [*(option for option, text in before.items() if text), *(word for word, _ in words)]
    for word, text in words:
        named = repr(word) if word in OPTIONS else "an option"  # else it may be a secret
        if not text:
            raise ConfigurationError(
                f"{named} in {settings.place} is empty: give it a value, or leave it out"
            )
        if said.count(word) > 1:
            raise ConfigurationError(f"{settings.place} says {named} more than once: say it once")


def _database(key: str, value: object) -> None:
    if value is None:
        raise wrong(key, value, "the number of a database")
    check_count(key, value)


def _secret(key: str, value: object) -> None:
    """Not shown, whatever it is."""
    if not isinstance(value, str):
        raise ConfigurationError(f"{key} is of type {type(value).__name__}; it must be a string")


def _word(key: str, value: object) -> None:
    if not (isinstance(value, str) and re.fullmatch("[!-~]+", value)):
        raise wrong(key, value, "a word of printable ASCII, without a space")


def _requirement(key: str, value: object) -> None:
    if not isinstance(value, ssl.VerifyMode) and value not in ("none", "optional", "required"):
        raise wrong(key, value, "'none', 'optional' or 'required'")


OPTIONS: dict[str, Callable[[str, object], object]] = {
    "socket_timeout": check_ttl,
    "socket_connect_timeout": check_ttl,
    "username": _secret,
    "password": check_password,
    "db": _database,
    "client_name": _word,
    "ssl_ca_certs": check_path,
    "ssl_certfile": check_path,
    "ssl_keyfile": check_path,
    "ssl_cert_reqs": _requirement,
    "ssl_check_hostname": check_flag,
}
"""The options, and the check of each."""

BESIDE = ("wait_replicas", "restart_delay", "protocol")
"""Options of lockkit itself, which a URL may have beside those of the driver."""
