"""``@lock_view``: names from requests, the lock around a view, and the answers of refusals."""
