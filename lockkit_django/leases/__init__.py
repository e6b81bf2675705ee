"""Locks that know of Django's transactions: clients, fenced rows, locks until a COMMIT."""
