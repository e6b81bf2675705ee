"""For operators: what is stuck and why, and the commands."""
