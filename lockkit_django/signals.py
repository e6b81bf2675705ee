"""Django signals that tell what became of an order. A receiver gets ``request`` and ``order_id``.

The sender is the view. An exception of a receiver is logged and does not break the request.

>>> from django.dispatch import receiver
>>> @receiver(order_conflict)
... def suspicious(sender, request, order_id, **kwargs):
...     logger.warning("order ID %r was used for another request", order_id)
"""

from __future__ import annotations

from django.dispatch import Signal

order_replayed = Signal()
"""A stored answer was given to a repeated request."""

order_conflict = Signal()
"""An order ID came with another request than before: 422."""

order_orphaned = Signal()
"""An earlier try was begun, and how it ended is not known. Sent whatever ORPHANS says to do now."""
