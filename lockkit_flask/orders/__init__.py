"""Orders exactly once: from a request to its one answer."""
