"""URLs that name several servers: ``redis+sentinel://h1:26379,h2,h3/service/0``,
``redis+cluster://h1,h2,h3``; with ``rediss`` in front, over TLS."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from lockkit.model.errors import ConfigurationError
from lockkit.model.settings import AliasSettings


class Node(NamedTuple):
    """The address of one server."""

    host: str
    port: int


Remap = Callable[[tuple[str, int]], tuple[str, int]]


class Hosts(NamedTuple):
    """The parts of such a URL."""

    nodes: tuple[Node, ...]
    path: tuple[str, ...]
    one: AliasSettings  #: the settings for the first server alone, with a ``redis://`` URL
    remap: Remap | None  #: OPTIONS["address_remap"]


HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:@/?#,\s]+)(?::(?P<port>[0-9]{1,5}))?")


def read_hosts(settings: AliasSettings, port: int, example: str) -> Hosts:
    """``port``: the default. Raises ConfigurationError, which shows the example."""
    options = dict(settings.options)
    remap = options.pop("address_remap", None)
    if not (remap is None or callable(remap)):
        raise ConfigurationError(
            f"address_remap in OPTIONS of {settings.title} must be a function: "
            "(host, port) to (host, port)"
        )
    scheme, _, rest = settings.location.partition("://")
    rest, mark, query = rest.partition("?")
    authority, *path = rest.split("/")
    login, at, servers = authority.rpartition("@")
    matches = [HOST.fullmatch(server) for server in servers.split(",")]
    nodes = [Node(m["host"].strip("[]"), int(m["port"] or port)) for m in matches if m]
    if len(nodes) < len(matches) or not all(0 < node.port < 2**16 for node in nodes):
        raise ConfigurationError(f"{settings.place} must name its servers as {example} does")
    first = servers.split(",")[0].removesuffix(f":{nodes[0].port}")
    tls = scheme.partition("+")[0]
    one = f"{tls}://{login}{at}{first}:{nodes[0].port}{mark}{query}"
    return Hosts(
        tuple(dict.fromkeys(nodes)),
        tuple(part for part in path if part),
        settings._replace(location=one, options=options),
        remap,
    )


def remapped(node: Node, remap: Remap | None) -> Node:
    """The address at which this server is reached from here."""
    return node if remap is None else Node(*remap((node.host, node.port)))


def text_of(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
