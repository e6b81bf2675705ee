"""``@lock_view``: the name of a request, the lock around its view, what a refused client gets."""
