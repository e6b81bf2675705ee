"""``@lock_view``: names from requests, refusals, and how a lock goes with its view."""
