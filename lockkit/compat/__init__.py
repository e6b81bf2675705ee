"""Locks of lockkit with the interfaces of other libraries. Each module needs its library."""
