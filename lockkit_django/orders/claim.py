"""STORE "redis", for effects outside a database: the record is a claim beside the lock.

The engine claims the order when it lets it in, and says what becomes of the claim: no transaction
is opened here, and nothing can be rolled back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockkit.orders import OrderResponse, drive
from lockkit.orders.redis_records import RedisRecords
from lockkit_django.leases.handler import locks
from lockkit_django.orders.answers import refusal
from lockkit_django.orders.endings import Ending
from lockkit_django.orders.exceptions import is_of_check, is_of_handler
from lockkit_django.orders.request import asks_to_log_in, response_facts

if TYPE_CHECKING:
    from django.http import HttpResponseBase

    from lockkit.orders import Refusal

__all__ = ["Claimed"]

REFUSED = 403
NOT_RUN = OrderResponse(503, (), None)


class Claimed(Ending):
    """The response is stored by the fence of the claim, after the view.

    An exception that becomes nothing to be stored, a request that is cancelled, and a process that
    is killed leave the claim as it is, an orphan: what the view did is not known, and it may be a
    payment.
    """

    _ended = False
    _refused = False  #: by a check of Django's, before the view

    def begin(self) -> None:
        self.begun = True

    def end(self, response: HttpResponseBase, *, failed: bool) -> HttpResponseBase:
        self._ended = True
        failed = (failed and self.begun and not self._refused) or is_of_handler(response)
        reject = self._settle(self._facts(response), failed=failed)
        return response if reject is None else refusal(reject)

    def abandon(self) -> None:
        """An orphan, if the view was begun; it may have waited for a lock of its own."""
        if not (self.begun or self._ended):
            self._settle(NOT_RUN, failed=False)

    def answer_to(self, error: Exception) -> HttpResponseBase | None:
        self._refused = is_of_check(error)
        return None

    def _settle(self, facts: OrderResponse, *, failed: bool) -> Refusal | None:
        orders = self.opened.orders
        client = locks[orders.settings.alias]
        flow = orders.settle(self.opened.admitted, facts, failed=failed)
        return drive(flow, RedisRecords.of(client), client)

    def _facts(self, response: HttpResponseBase) -> OrderResponse:
        facts = response_facts(self.opened.request, response)
        if asks_to_log_in(self.opened.request, response):
            return facts._replace(status=REFUSED)  # a refusal, whatever its status says
        return facts
