"""Locks that know of Django's transactions: clients, and locks until a COMMIT."""
