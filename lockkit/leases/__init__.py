"""What users hold: clients, locks, leases, and ``@locked``."""
