"""``flask locks``."""
