"""Where leases live: one module per store. Import none of them directly; use a URL."""
