"""``redlock://h1,h2,h3``, ``redlocks://…``: locks in several independent Redis or Valkey servers.

The algorithm is Salvatore Sanfilippo's Redlock (https://redis.io/docs/latest/develop/use/patterns/
distributed-locks/). All nodes are asked at once. A claim that has the votes of most of them holds
the name, for its TTL minus the time that the votes took and what the clocks may drift.

Guarantee: locks work while most nodes answer, and two tokens never hold one name as long as the
nodes' clocks run alike and no node forgets a vote before its TTL. Limits: a jump of one node's
clock, or an empty restart within ``restart_delay``, can make a second holder; and there is no
fencing token, because no node knows what the others have counted. See docs/stores.md.
"""

from __future__ import annotations

from lockkit.model.errors import DriverMissing

try:
    import redis as _driver  # noqa: F401  (only to say clearly that it is missing)
except ImportError as error:
    raise DriverMissing(
        f"Redlock needs redis-py: pip install 'lockkit[redis]' ({error})"
    ) from error

from lockkit.stores.redlock.store import RedlockStore

__all__ = ["RedlockStore"]
