"""``zookeeper://``: locks in an ensemble of ZooKeeper servers (3.5 or later), over kazoo.

Each claim is an ephemeral sequential node in the folder of its name. The first node holds the name;
each of the others watches only the node before it. A claim's session has the claim's ttl as its
timeout, so if the holder's process dies, the next claim gets the name after at most that time.

Guarantee: exclusion does not depend on any wall clock, and an acknowledged grant is on a majority
of the servers. A lease ends for its holder before the leader can end the session, even if the
holder's server is cut off from the leader. Limits: a lease counts for less than its ttl, see
``Session.ends``; fencing tokens come from the ensemble's transactions, so they begin anew in a new
ensemble.
"""

from __future__ import annotations

from lockkit.model.errors import DriverMissing

try:
    import kazoo as _driver  # noqa: F401  (only to say clearly that it is missing)
except ImportError as error:
    raise DriverMissing(
        f"the ZooKeeper store needs kazoo: pip install 'lockkit[zookeeper]' ({error})"
    ) from error

from lockkit.stores.zookeeper.store import ZooKeeperStore

__all__ = ["ZooKeeperStore"]
