"""From a request to its order; what then happens to the order is ``admission``'s."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockkit.orders import refusals
from lockkit.orders.admission import Admission
from lockkit.orders.forms import FormIds, form_order
from lockkit.orders.orderid import (
    IdSource,
    MalformedOrderIdError,
    find_order_id,
    may_be_in_body,
)
from lockkit.orders.request import Order, OrderRequest, fingerprint_of, key_of, too_large
from lockkit.web.refusal import Refusal

if TYPE_CHECKING:
    from lockkit.orders.settings import OrderSettings

LONGEST = 255
"""What is shown of a path: it comes from a client, and is kept with each record."""


class Orders(Admission):
    """The rules for one application; thread-safe, and shared by all its requests.

    ``forms``: reads the order IDs of signed forms; without it they are like any other ID.
    """

    def __init__(self, settings: OrderSettings, forms: FormIds | None = None) -> None:
        super().__init__(settings)
        self._forms = forms

    def identify(
        self,
        request: OrderRequest,
        *,
        sources: tuple[IdSource, ...] | None = None,
        required: bool | None = None,
    ) -> Order | Refusal | None:
        """The order that a request is; None: it is none; Refusal: it means to be one.

        ``sources`` and ``required`` override the settings, for one view. Whether the request is
        covered by PATHS and METHODS is the caller's question (``settings.covers``).
        """
        chain = sources or self.settings.order_id
        try:
            order_id = self._order_id(request, chain)
            if isinstance(order_id, str):
                return self._order(request, order_id)
        except MalformedOrderIdError as error:
            return refusals.malformed(str(error))
        if order_id is None and (self.settings.required if required is None else required):
            return refusals.missing(" or ".join(map(str, chain)))
        return order_id

    def _order_id(self, request: OrderRequest, chain: tuple[IdSource, ...]) -> str | Refusal | None:
        """A body is read only if its size is allowed, and only if no earlier source has an ID."""
        for source in chain:
            refused = self._refused_body(request) if may_be_in_body(request, source) else None
            if refused is not None:
                return refused
            found = find_order_id(request, (source,))
            if found is not None:
                return found
        return None

    def _order(self, request: OrderRequest, order_id: str) -> Order | Refusal:
        refused = self._refused_body(request)
        if refused is not None:
            return refused
        shown = _printable(f"{request.method} {request.path}"[:LONGEST])
        form = None if self._forms is None else self._forms.read(order_id)
        if form is not None:
            return form_order(form, request, shown, self.settings)
        identity = request.read_identity()
        key = key_of(request, identity, order_id, self.settings.namespace)
        if key is None:
            return refusals.NOBODY
        return Order(order_id, key, fingerprint_of(request), shown, guest=identity.is_of_guest)

    def _refused_body(self, request: OrderRequest) -> Refusal | None:
        """What cannot be compared with another try is no order."""
        if request.unseen:
            return refusals.LENGTH_REQUIRED
        limit = self.settings.max_request
        return refusals.too_big(limit) if too_large(request, limit) else None


def _printable(text: str) -> str:
    """For people, and for databases that refuse NUL."""
    return "".join(c if c.isprintable() else "?" for c in text)
