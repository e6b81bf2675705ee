"""How often a waiter asks a table, which sends no message."""

from __future__ import annotations

import random

from lockkit.model.types import Busy

POLL_LEAST = 0.0005
POLL_STEP = 0.005
POLL_LONG = 0.05
POLL_MOST = 0.1  # well below half of alive_for's least


def pause(seconds: float, busy: Busy) -> float:
    """How long a waiter of a store without messages sleeps: the head of the queue shortest.

    A twentieth of the time for which the holder has held it: so the wait is at most that much
    longer than it had to be, and a long one costs few requests.
    """
    step = POLL_STEP if busy.age is None else min(max(busy.age / 20, POLL_LEAST), POLL_LONG)
    return min(seconds, min(step * (1 + busy.ahead), POLL_MOST) * random.uniform(0.5, 1.0))
