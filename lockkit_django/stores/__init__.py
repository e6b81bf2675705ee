"""Stores that a Django project has already: its database, and the Redis of its cache."""
