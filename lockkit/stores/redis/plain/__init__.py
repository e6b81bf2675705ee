"""``redis://…?protocol=plain``: locks that every client in every language sees.

A lock is one key, KEY_PREFIX and the name, which says the token of its holder: ``SET key token
NX PX``, and compare-and-delete. So lockkit, redis-py's ``Lock``, django-redis' ``cache.lock()``
and all that lock in this way exclude one another. KEY_PREFIX is empty unless it is given.

Guarantee: two tokens never hold one key at the same server time, as of ``redis://``. Limits:
fencing tokens and the queue are for lockkit's own holders and lie beside the key. Other clients
have no fencing token, do not queue, and send no message when they release: the first who waits for
one of them asks twenty times a second. While lockkit's holders hand a key on, no other client comes
in between.
"""

from __future__ import annotations

from lockkit.stores.redis.plain.store import PlainStore

__all__ = ["PlainStore"]
