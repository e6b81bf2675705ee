"""``redis://``, ``rediss://`` and ``unix://``: locks in one Redis (6.2 or later) or Valkey server.

FIFO direct handoff: a release writes the next owner and tells it by a message, so a waiter needs
one request to queue and none to be granted. Every step is one Lua script on the server's clock.

Guarantee: two tokens never hold one name at the same server time. Limits: the lease clock is the
server's wall clock, so a jump of it ends or prolongs leases; a server that loses its data (restart
without persistence, fail-over to a replica that lags, an evicting maxmemory policy) loses leases.
Fencing tokens go on growing through all of these, if clocks differ by less than the outage lasts.
"""

from __future__ import annotations

from lockkit.model.errors import DriverMissing

try:
    import redis as _driver  # noqa: F401  (only to say clearly that it is missing)
except ImportError as error:
    raise DriverMissing(
        f"the Redis store needs redis-py: pip install 'lockkit[redis]' ({error})"
    ) from error

from lockkit.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
