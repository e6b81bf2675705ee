"""``redis+sentinel://h1,h2,h3/service``: locks in the master that the Sentinels name.

Each connection leads to the current master: first the Sentinels are asked for it, then the server
itself, whether it is a master. So no connection leads to a server that was demoted, or that returns
and takes itself for the master, as long as one Sentinel that knows better answers. If a master is
lost, so are the locks that it had not replicated; fencing tokens go on growing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import redis.sentinel

from lockkit.engine.effects import Exchange, Step
from lockkit.model.checks import check_ttl
from lockkit.model.errors import BackendError, ConfigurationError
from lockkit.model.settings import AliasSettings
from lockkit.runtime.run import run
from lockkit.runtime.wires import CallWire
from lockkit.stores.redis.connections import OwnConnections, exchange
from lockkit.stores.redis.failures import REFUSALS, SENTINEL, MasterUnknown
from lockkit.stores.redis.hosts import Node, Remap, read_hosts, remapped, text_of
from lockkit.stores.redis.protocol import pack
from lockkit.stores.redis.settings import Maker, maker

PORT = 26379
EXAMPLE = "redis+sentinel://user:password@sentinel1:26379,sentinel2,sentinel3/service"
PATIENCE = 0.5
"""Seconds to wait for a Sentinel. A shorter socket_timeout in OPTIONS applies instead, and so does
any in OPTIONS['sentinel']."""

OF_SENTINELS = {
    REFUSALS["NOAUTH"]: "the Sentinel wants a password: OPTIONS['sentinel'] = {'password': …}",
    REFUSALS["WRONGPASS"]: "the Sentinel refuses the user or the password in OPTIONS['sentinel']",
}
"""What a refusal means, said by a Sentinel: the servers' user and password are not for it."""


class MasterSettings(NamedTuple):
    """How to find the master, from the settings."""

    service: str
    sentinels: tuple[Node, ...]
    remap: Remap | None
    one: AliasSettings  #: for connections to the servers
    asked: AliasSettings  #: for connections to the Sentinels


def master_settings(settings: AliasSettings) -> MasterSettings:
    """Raises ConfigurationError."""
    options = dict(settings.options)
    own = options.pop("sentinel", {})
    hosts = read_hosts(settings._replace(options=options), PORT, EXAMPLE)
    if not isinstance(own, Mapping):
        raise ConfigurationError(
            f"sentinel in OPTIONS of {settings.title} must map options of the Sentinels to values"
        )
    match hosts.path:
        case (service,):
            database = ""
        case (service, database):
            database = f"/{database}"
        case _:
            raise ConfigurationError(
                f"{settings.place} must name the service that the "
                f"Sentinels watch, as {EXAMPLE} does"
            )
    address, mark, query = hosts.one.location.partition("?")
    one = hosts.one._replace(location=f"{address}{database}{mark}{query}")
    return MasterSettings(service, hosts.nodes, hosts.remap, one, _of_sentinels(hosts.one, own))


def _of_sentinels(one: AliasSettings, own: Mapping[str, Any]) -> AliasSettings:
    """Sentinels use TLS if the servers do, unless ``tls`` says otherwise. The servers' user and
    password, and the query of the URL, are not for them."""
    scheme, _, rest = one.location.partition("://")
    known = dict(own)
    tls = known.pop("tls", scheme == "rediss")
    if not isinstance(tls, bool):
        raise ConfigurationError("tls of the Sentinels must be True or False")
    address = rest.partition("?")[0].rpartition("@")[2]
    inherited = {key: value for key, value in one.options.items() if key.startswith("ssl_") and tls}
    where = f"OPTIONS['socket_timeout'] of {one.title}"
    patience = check_ttl(where, one.options.get("socket_timeout", PATIENCE))
    known.setdefault("socket_timeout", min(PATIENCE, patience))
    options = {**inherited, **known}
    return one._replace(location=f"redis{'s' * tls}://{address}", options=options)


class MasterReply(NamedTuple):
    """One Sentinel's answer."""

    epoch: int  #: of the configuration: each fail-over has a greater one
    master: Node


def discover(master: MasterSettings, silent: set[Node]) -> Step[Node]:
    """Find the master. Sentinels are asked until more than half have named one; if fewer do, those
    count. The newest configuration counts. ``silent``: those that did not answer last time; they
    are asked last.

    Raises MasterUnknown, which is a ConnectionError of redis-py's.
    """
    answers: list[MasterReply] = []
    reasons = ["it is down"]
    for node in sorted(master.sentinels, key=silent.__contains__):
        try:
            reply = yield Exchange(pack(b"SENTINEL", b"MASTER", master.service.encode()), node)
        except BackendError as error:
            silent.add(node)
            reasons.append(_reason(error))
            continue
        silent.discard(node)
        if (answer := _read(reply)) is not None:
            answers.append(answer)
        if len(answers) > len(master.sentinels) // 2:
            break
    if not answers:
        raise MasterUnknown(f"no Sentinel leads to the master of {master.service!r}: {reasons[-1]}")
    newest = max(answers, key=lambda answer: (answer.epoch, answers.count(answer)))
    return remapped(newest.master, master.remap)


def _reason(error: BackendError) -> str:
    if "No such master" in str(error.__cause__):
        return "they watch no such service"
    said = str(error)
    if SENTINEL in said:
        return "the server is not a Sentinel: Sentinels have a port of their own, usually 26379"
    for words, meaning in OF_SENTINELS.items():
        said = said.replace(words, meaning)
    return said


def _read(reply: Any) -> MasterReply | None:
    """The answer; None: this Sentinel takes the master to be down."""
    texts = [text_of(part) for part in reply]
    state = dict(zip(texts[::2], texts[1::2], strict=False))
    flags = state.get("flags", "").split(",")
    if "master" not in flags or {"s_down", "o_down"}.intersection(flags):
        return None
    return MasterReply(int(state["config-epoch"]), Node(state["ip"], int(state["port"])))


class Resolver:
    """Acts as the pool that redis-py's connections to a master of Sentinels belong to."""

    is_master = True
    check_connection = False
    driver: Any = redis.sentinel  #: has the classes of such connections

    def __init__(self, master: MasterSettings, makers: Mapping[Node, Maker]) -> None:
        self.master = master
        self.service_name = master.service
        self._silent: set[Node] = set()
        self._makers = makers

    def get_master_address(self) -> Any:
        return run(discover(self.master, self._silent), _SentinelWire(self._makers))


class _SentinelWire(CallWire):
    """Asks one Sentinel, over a connection for this question alone: questions are rare."""

    def __init__(self, makers: Mapping[Node, Maker]) -> None:
        self._makers = makers

    def exchange(self, effect: Exchange) -> Any:
        connections = OwnConnections(self._makers[effect.route])  # type: ignore[index]
        try:
            return exchange(connections, effect.payload)
        finally:
            connections.close()


def master_maker(settings: AliasSettings, pool: Any, resolver: type[Resolver]) -> Maker:
    """Makes connections that lead to the current master; no I/O."""
    master = master_settings(settings)
    made = maker(master.one, pool)
    asked = maker(master.asked, pool)
    makers = {node: asked.at(node.host, node.port) for node in master.sentinels}
    tls = "SSL" * master.one.location.startswith("rediss")
    kind = getattr(resolver.driver, f"SentinelManaged{tls}Connection")
    return made.like(kind, connection_pool=resolver(master, makers))
