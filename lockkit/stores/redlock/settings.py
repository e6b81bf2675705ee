"""The nodes that the settings of an alias name."""

from __future__ import annotations

import re

import redis

from lockkit.model.checks import wrong
from lockkit.model.errors import ConfigurationError
from lockkit.model.settings import AliasSettings
from lockkit.stores.redis.settings import Maker, maker, own_option

TIMEOUTS = {"timeout": 0.5, "connect_timeout": 2.0}
RESTART_DELAY = 60.0
LONGEST_DELAY = 24 * 3600.0

FEWEST = 3
"""Nodes. Of two nodes, both would have to be up, so they would fail more often than one server."""

NODE = r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(?::([0-9]{1,5}))?"
DELAY = "restart_delay"


class Nodes:
    """The nodes of an alias. Raises ConfigurationError; no I/O."""

    def __init__(self, settings: AliasSettings) -> None:
        self.restart_delay, settings = _delay(settings)
        scheme, _, rest = settings.location.partition("://")
        where, mark, query = rest.partition("?")
        authority, slash, path = where.partition("/")
        login, at, hosts = authority.rpartition("@")
        head = f"{'rediss' if scheme == 'redlocks' else 'redis'}://{login}{at}"
        tail = f"{slash}{path}{mark}{query}"
        self._settings = [
            settings._replace(location=f"{head}{node}{tail}")
            for node in _nodes(settings.place, login, hosts)
        ]
        makers = self.makers()
        self.servers = [made.server() for made in makers]
        self.database = makers[0].described()
        self.patience: float = makers[0].arguments["socket_timeout"]  #: seconds for an answer

    def makers(self) -> list[Maker]:
        return [maker(each, redis.ConnectionPool, **TIMEOUTS) for each in self._settings]

    def async_makers(self) -> list[Maker]:
        import redis.asyncio

        return [maker(each, redis.asyncio.ConnectionPool, **TIMEOUTS) for each in self._settings]


def _nodes(where: str, login: str, hosts: str) -> list[str]:
    """The nodes that the URL names. Each must be named once: otherwise it would have two votes."""
    nodes = dict[tuple[str, int], str]()
    for node in hosts.split(","):
        match = re.fullmatch(NODE, node)
        if match is None or "@" in login:  # not shown: it may hold a password
            raise ConfigurationError(
                f"{where} does not name its nodes; it looks like "
                "redlock://user:password@host1:6379,host2:6379,host3:6379/0"
            )
        nodes[match[1].lower(), int(match[2] or 6379)] = node
    if len(nodes) < len(hosts.split(",")):
        raise ConfigurationError(f"{where} names a node twice")
    if len(nodes) < FEWEST:
        raise ConfigurationError(
            f"{where} names {len(nodes)} nodes; Redlock needs at "
            f"least {FEWEST}, and for one server there is redis://"
        )
    return list(nodes.values())


def _delay(settings: AliasSettings) -> tuple[float, AliasSettings]:
    value, rest = own_option(settings, DELAY, RESTART_DELAY, _number)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= LONGEST_DELAY:
        where = f"{DELAY} of {settings.title}"
        raise wrong(where, value, f"seconds, at most {LONGEST_DELAY:g}; 0: nodes forget nothing")
    return float(value), rest


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
