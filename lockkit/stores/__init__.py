"""Where leases live: one module or package per store. You name a store by its URL."""
