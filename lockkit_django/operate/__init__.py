"""For operators: the checks of settings and stores, and what is deleted."""
