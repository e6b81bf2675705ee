"""An alias's settings as hosts, paths, credentials and an ACL."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote, unquote

from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from lockkit.model.checks import (
    Unshown,
    check_flag,
    check_password,
    check_path,
    check_ttl,
    near_option,
    one_of,
    wrong,
)
from lockkit.model.errors import ConfigurationError
from lockkit.model.settings import AliasSettings
from lockkit.stores import tls
from lockkit.stores.contract import reject_unknown_options
from lockkit.stores.servers import current, said_twice

CONNECT_TIMEOUT = 2.0
REQUEST_TIMEOUT = 5.0

FENCE_BASE = 1 << 52
"""Added to a node's transaction id: the sum is its fence. The fences of other stores are
microseconds since 1970, which are smaller until 2112. So a resource that has seen such fences takes
ZooKeeper's as newer."""

MOST_FENCE_BASE = 1 << 62

LONGEST = 2**31 - 1
"""Milliseconds: the protocol has 32 bits for the timeout of a session."""

URL = r"zookeeper://(?:(?P<login>[^@/?#]*)@)?(?P<hosts>[^@/?#]+)(?P<chroot>/[^?#]*)?"
HOST = r"(?:[^\[\]:,\s]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?"
ACLS = {
    "open": OPEN_ACL_UNSAFE,
    "creator": CREATOR_ALL_ACL,
    "creator-read": [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE],
}

FILES = {"ca": "ssl_ca_certs", "cert": "ssl_certfile", "key": "ssl_keyfile"}


class Configuration:
    """The settings of sessions. Its repr shows nothing: there may be a password."""

    def __init__(self, settings: AliasSettings) -> None:
        self.title, self.place = settings.title, settings.place
        self.route = milliseconds(settings.ttl)
        refuse_longer(self.route)
        options = checked_options(settings)
        found = re.fullmatch(URL, settings.location)
        if found is None or not all(re.fullmatch(HOST, host) for host in found["hosts"].split(",")):
            raise ConfigurationError(
                f"{settings.place} is not a ZooKeeper URL; it looks "
                "like zookeeper://h1:2181,h2:2181,h3:2181/chroot. Everything else goes into "
                f"OPTIONS{near_option(settings.location, OPTIONS)}"
            )
        self.hosts = found["hosts"]
        self.chroot = self._read_chroot(found["chroot"] or "")
        self.prefix = settings.key_prefix
        self.connect_timeout: float = options.get("connect_timeout", CONNECT_TIMEOUT)
        self.request_timeout: float = options.get("request_timeout", REQUEST_TIMEOUT)
        self.fence_base: int = options.get("fence_base", FENCE_BASE)
        self._login = self._read_login(found["login"], options)
        acl = options.get("acl", "creator" if self._login else "open")
        self.acl: list[ACL] = ACLS[acl] if isinstance(acl, str) else list(acl)
        self._files = {name: options.get(option) for name, option in FILES.items()}
        self._verified = tls.IDENTITY if options.get("ssl_check_hostname", True) else tls.AUTHORITY
        self._has_tls = bool(options.get("ssl"))
        self.tls()  # a wrong file is an error at once

    def _read_chroot(self, path: str) -> str:
        """The chroot, without a slash at its end. Raises ConfigurationError."""
        chroot = path.removesuffix("/")
        if not {"", ".", ".."}.isdisjoint(chroot.split("/")[1:]):
            raise ConfigurationError(
                f"the chroot in {self.place} has a part that is "
                "empty, '.' or '..', and ZooKeeper has no such paths: write it out, as in /shop/eu"
            )
        return chroot

    def _read_login(self, login: str | None, options: dict[str, Any]) -> tuple[str, Any] | None:
        if login is not None and "username" in options:
            raise ConfigurationError(
                f"{self.place} and its OPTIONS both name a user: say it in one of them"
            )
        if login is not None:
            user, _, password = login.partition(":")
            if password and "password" in options:
                raise said_twice(self.place)
            return unquote(user), options.get("password", unquote(password))
        if "password" in options and "username" not in options:
            raise ConfigurationError(f"the password of {self.title} needs a username")
        if "username" in options:
            return options["username"], options.get("password", "")
        return None

    def tls(self) -> ssl.SSLContext | None:
        """Certificates and host names are verified; kazoo's own context verifies no host name.
        Called for each connection, because certificates are renewed."""
        if not self._has_tls:
            return None
        return tls.context(self._verified, self._files, f"OPTIONS of {self.title}")

    def credentials(self) -> set[tuple[str, str]]:
        """Called for each connection, because a password that is a function may change."""
        if self._login is None:
            return set()
        user, password = self._login
        return {("digest", f"{user}:{current(password)}")}

    def root(self) -> str:
        """The path below which all is kept for this key prefix."""
        return f"{self.chroot}/{component(self.prefix) if self.prefix else '-'}"


def milliseconds(ttl: float) -> int:
    """The timeout of a session for claims with this ttl."""
    return max(int(ttl * 1000), 1)


def refuse_longer(timeout: int) -> None:
    """Raise ConfigurationError for a session that would last too long, in milliseconds."""
    if timeout > LONGEST:
        longest = f"at most {LONGEST // 1000} s, which is 24.8 days: no session lasts longer"
        raise wrong("ttl", timeout / 1000, f"{longest} in ZooKeeper")


def component(text: str) -> str:
    """The text as one part of a path, which may be neither ``.`` nor ``..``, nor contain ``/``."""
    return quote(text, safe="").replace(".", "%2E").replace("-", "%2D")


def checked_options(settings: AliasSettings) -> dict[str, Any]:
    options = reject_unknown_options(settings, tuple(OPTIONS))
    for option, value in options.items():
        OPTIONS[option](f"OPTIONS[{option!r}] of {settings.title}", value)
        if option.startswith("ssl_") and not options.get("ssl"):
            raise ConfigurationError(
                f"OPTIONS[{option!r}] of {settings.title} is for TLS: set OPTIONS['ssl'] to True"
            )
    return options


def _user(key: str, value: object) -> None:
    if not (isinstance(value, str) and value and ":" not in value):
        raise wrong(key, Unshown(), "the name of a user, without a colon and a password")


def _acl(key: str, value: object) -> None:
    if isinstance(value, str):
        one_of(*ACLS)(key, value)
    elif not (isinstance(value, Sequence) and value and all(isinstance(a, ACL) for a in value)):
        raise wrong(key, Unshown(), f"one of {', '.join(ACLS)}, or a list of kazoo.security.ACL")


def _base(key: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MOST_FENCE_BASE:
        raise wrong(key, value, "a whole number from 0, less than 2**62")


OPTIONS: dict[str, Callable[[str, object], object]] = {
    "connect_timeout": check_ttl,
    "request_timeout": check_ttl,
    "username": _user,
    "password": check_password,
    "acl": _acl,
    "ssl": check_flag,
    "ssl_ca_certs": check_path,
    "ssl_certfile": check_path,
    "ssl_keyfile": check_path,
    "ssl_check_hostname": check_flag,
    "fence_base": _base,
}
"""The options, and the check of each."""
