"""What both frameworks need of a request: the locked view, its name, its refusal."""
