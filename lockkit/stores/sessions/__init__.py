"""Locks that belong to a session with a database server: ``?mode=advisory`` and ``?mode=row``."""
