"""Rules that both frameworks share for a request: the locked view, its name, its refusal."""
