"""Types, errors, names, checks of values, the clock and the log. Imports no other folder."""
