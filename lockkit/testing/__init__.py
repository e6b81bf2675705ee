"""Tools for tests of stores, and of programs that lock.

``servers`` starts real stores, ``proxy`` breaks the network between a client and a store,
``conformance`` is the suite that every store passes, ``checkers`` judge a run, and
``plugin`` is the pytest plugin. Importing this package imports none of them.
"""
