"""``redis://…?protocol=plain``: locks that every client in every language sees.

A lock is one key, KEY_PREFIX and the name, whose value is the holder's token: ``SET key token
NX PX``, and compare-and-delete. So lockkit, redis-py's ``Lock``, django-redis' ``cache.lock()``
and all that lock in this way exclude one another. KEY_PREFIX is empty unless it is given.

Guarantee: two tokens never hold one key at the same server time, as with ``redis://``. Limits:
fencing tokens and the queue are for lockkit's own claims and lie beside the key. Other clients have
no fencing token, do not queue, and send no message when they release: the first waiter for one of
them asks twenty times a second. While lockkit's holders hand a key on, no other client comes in
between.
"""

from __future__ import annotations

from typing import Self

from lockkit.model.checks import wrong
from lockkit.model.log import log
from lockkit.model.settings import AliasSettings
from lockkit.model.types import Busy, Gone, Grant, Request
from lockkit.stores.contract import Listed
from lockkit.stores.redis.plain.language import PlainLanguage
from lockkit.stores.redis.plain.listing import PlainListing
from lockkit.stores.redis.settings import own_option
from lockkit.stores.redis.steps import ScriptSteps

REPAIR = "repair_missing_ttl"
YES = {"1": True, "true": True, "0": False, "false": False}


class PlainStore(PlainListing, ScriptSteps, Listed):
    """Locks as keys that other clients see. See the package for guarantee and limits.

    It has one option of its own, in OPTIONS or in the URL: ``repair_missing_ttl`` (False). A claim
    that meets the key of another client without a TTL then gives it the TTL that it asks for.
    """

    _language: PlainLanguage

    @classmethod
    def _speaking(cls, settings: AliasSettings) -> Self:
        own, _ = _divided(settings)
        store = cls(settings, PlainLanguage(settings.key_prefix, repairs=own))
        store._repair_ttl = settings.ttl
        store._is_announced = True
        return store

    @staticmethod
    def _for_driver(settings: AliasSettings) -> AliasSettings:
        return ScriptSteps._for_driver(_divided(settings)[1])

    def database(self) -> str:
        return f"{super().database()}, plain keys"

    def _read(self, request: Request, reply: bytes) -> Grant | Busy | Gone:
        if reply[:1] == b"R":
            log.warning("%r had no TTL: it has one of %g s now", request.name, request.ttl)
            reply = b"B" + reply[1:]
        return super()._read(request, reply)


def _divided(settings: AliasSettings) -> tuple[bool, AliasSettings]:
    """Whether a missing TTL is repaired, and the settings for the driver."""
    _, rest = own_option(settings, "protocol", "plain", str)
    repairs, rest = own_option(rest, REPAIR, False, lambda text: YES.get(text.lower(), text))
    if not isinstance(repairs, bool):
        raise wrong(f"{REPAIR} of {settings.title}", repairs, "true or false")
    return repairs, rest
