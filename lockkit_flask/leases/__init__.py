"""Locks that know of the transaction of ``db.session``, and the leases of running requests."""
