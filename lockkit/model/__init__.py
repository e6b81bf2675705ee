"""Types, errors, names, checks of values, the clock and the log: it imports nothing of ours."""
