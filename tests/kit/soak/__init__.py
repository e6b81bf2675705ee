"""``python -m soak``: orders on two machines that are killed all the time, and a verdict."""
