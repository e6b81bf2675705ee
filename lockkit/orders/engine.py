"""The rules for orders: which request is an order, and how it ends."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from lockkit.leases.lease import value
from lockkit.model.checks import check_callable
from lockkit.model.errors import BackendError
from lockkit.model.log import log
from lockkit.orders import refusals
from lockkit.orders.admission import Admission
from lockkit.orders.decisions import NO_LEASE, Decision, Discard, Forget, Keep, Proceed
from lockkit.orders.forms import PREFIX, FormIds, form_order
from lockkit.orders.order import (
    IdSource,
    MalformedOrderIdError,
    Order,
    fingerprint_of,
    key_of,
    may_be_in_body,
    order_id_from,
)
from lockkit.orders.record import OrderRequest, Record, refuses, snapshot_of, storable
from lockkit.orders.settings import NEVER, SOURCE
from lockkit.web.refusal import Refusal
from lockkit.web.waiting_room import WaitingRoom

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockkit.orders.flow import Flow, Means
    from lockkit.orders.record import OrderResponse
    from lockkit.orders.settings import OrderSettings

LONGEST = 255
"""Characters of a path that are shown. A limit: clients choose paths, and each record has one."""

MOST_SEEN = 4096
"""Keys that a process remembers (half a megabyte). One is forgotten if another takes its slot."""


class Orders:
    """The rules for one application; thread-safe, and shared by all its requests.

    ``forms``: reads the order IDs of signed forms; without it they are like any other ID.
    """

    def __init__(self, settings: OrderSettings, forms: FormIds | None = None) -> None:
        self.settings = settings
        self.claims = settings.claims
        self._never_locks = settings.lock == NEVER
        self.waiting_room = WaitingRoom()
        self._forms = forms
        self._seen = [""] * MOST_SEEN
        self._has_told = settings.required is not None

    def covers(self, method: str, path: str) -> bool:
        """Whether a request may be an order. ``path`` begins with a slash."""
        rules = self.settings
        return method in rules.methods and any(each.search(path) for each in rules.paths)

    def hook(self, name: str) -> Callable[..., Any] | None:
        """The function of this setting, or None. Raises ConfigurationError if it cannot be used."""
        path = getattr(self.settings, name)
        return path and check_callable(f"{SOURCE}[{name.upper()!r}]", path)

    def identify(
        self,
        request: OrderRequest,
        *,
        sources: tuple[IdSource, ...] | None = None,
        required: bool | None = None,
    ) -> Order | Refusal | None:
        """The order of a request; None: it is not an order; Refusal: its order cannot be made.

        ``sources`` and ``required`` override the settings for one view. The caller decides
        whether PATHS and METHODS cover the request (``covers``).
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
        if order_id is None and required is None and not self._has_told:
            self._tell_unprotected(request)
        return order_id

    def admit(self, order: Order, *, key_decides: bool = False) -> Flow[Decision]:
        """Decide whether the view may run for this order now. With STORE "redis", then claim it.

        A record is looked up before the lock only if this process has seen the order lately, or
        its form is old.
        ``key_decides``: the view runs only after the record was inserted, so there is no need to
        look for one under the lock. With LOCK "never" no lock is taken then.
        """
        until = time.monotonic() + self.settings.wait
        looks = not self._is_new(order.key)
        locks = not (key_decides and self._never_locks)

        async def admitted(means: Means) -> Decision:
            admission = Admission(self, order, means, until, locks=locks)
            try:
                return await admission.admit(looks=looks, key_decides=key_decides)
            except BackendError as failure:
                return _store_down(failure)

        return admitted

    def _is_new(self, key: str) -> bool:
        """Whether this process has not seen this key lately. Remembers the key."""
        slot = hash(key) % MOST_SEEN
        known, self._seen[slot] = self._seen[slot], key
        return known != key

    def reconsider(self, decision: Proceed) -> Flow[Decision]:
        """Decide again, because the record could not be inserted: there is one with this key.

        The caller still has to release the lease.
        """
        order, lease, until = decision.order, decision.lease, decision.until

        async def looked(means: Means) -> Decision:
            try:
                locks = lease is not NO_LEASE
                admission = Admission(self, order, means, until, locks=locks)
                return await admission.decide(lease, is_sure=False)
            except BackendError as failure:
                return _store_down(failure)

        return looked

    def settle(
        self, decision: Proceed, response: OrderResponse | None, *, failed: bool = False
    ) -> Flow[Refusal | None]:
        """With STORE "redis", store the response after the view. If this returns a Refusal, answer
        with that. The caller still has to release the lease.

        ``response``: None if it is not known how the view ended, because it was cancelled.
        ``failed``: the view raised, and the response was made from the exception. If there is no
        response, or it was made from an exception and is not a 4xx that is stored, the order
        becomes an orphan. If the view itself returned 409 or 5xx, the order may be tried again.
        """

        async def settled(means: Means) -> Refusal | None:
            if response is None or (failed and not _is_answer(response)):
                return None if response is None else self._unknown(decision.order, response)
            ending = self.conclude(decision.order, response)
            if not isinstance(ending, Keep):
                await Admission(self, decision.order, means, 0.0, locks=True).forget(decision)
                return None
            try:
                fence = decision.lease.fencing_token
                if await value(means.store.finish(ending.record, fence)):
                    return None
            except BackendError as failure:
                log.error("the response of an order is not stored: %s", failure)
            return refusals.outcome_unknown(may_repeat=self.settings.retries_orphans)

        return settled

    def _unknown(self, order: Order, response: OrderResponse) -> Refusal | None:
        """What to say instead of a response that was made from an exception. A success would tell
        the client that the order is done, and nobody knows that."""
        if response.status >= HTTPStatus.BAD_REQUEST:
            return None
        log.error(
            "the view of the order %r raised, and a middleware, a decorator or a handler makes %d "
            "of it: nobody knows what was done, so the order is an orphan",
            order.request,
            response.status,
        )
        if response.status >= HTTPStatus.MULTIPLE_CHOICES:
            return None
        return refusals.outcome_unknown(may_repeat=self.settings.retries_orphans)

    def running(self, order: Order) -> Record:
        """The record to insert before the view is called."""
        ttl = self.ttl_for(guest=order.guest)
        return Record(order.key, order.order_id, order.request, order.fingerprint, ttl)

    def ttl_for(self, *, guest: bool) -> float:
        """Seconds that a record lives. ``guest``: of an owner without a login."""
        settings = self.settings
        return min(settings.guest_ttl, settings.ttl) if guest else settings.ttl

    def ended(self, order: Order, response: OrderResponse) -> Record:
        """The record to store when the view has answered."""
        largest = self.settings.max_response
        if order.guest:
            largest = min(self.settings.guest_max_response, largest)
        state, snapshot = snapshot_of(response, largest)
        return self.running(order)._replace(state=state, snapshot=snapshot)

    def conclude(self, order: Order, response: OrderResponse) -> Keep | Forget | Discard:
        """Whether to keep, forget or discard the order after the response of its view."""
        if refuses(response.status):
            return Forget()
        return Keep(self.ended(order, response)) if storable(response.status) else Discard()

    def _order_id(self, request: OrderRequest, chain: tuple[IdSource, ...]) -> str | Refusal | None:
        """The first ID that a source has. A body is read only if it is needed and not too large."""
        for source in chain:
            refused = self._refused_body(request) if may_be_in_body(request, source) else None
            if refused is not None:
                return refused
            found = order_id_from(request, source)
            if found is not None:
                return found
        return None

    def _tell_unprotected(self, request: OrderRequest) -> None:
        """Warn once: a form may lack its field, or a client misspell its header, unnoticed."""
        self._has_told = True
        log.warning(
            "%s runs without an order ID, so nothing protects it from a double click. Set "
            "%s['REQUIRED'] to True to refuse it, or to False if that is meant",
            _shown(request),
            SOURCE,
        )

    def _order(self, request: OrderRequest, order_id: str) -> Order | Refusal:
        refused = self._refused_body(request)
        if refused is not None:
            return refused
        shown = _shown(request)
        forms = self._forms if order_id.startswith(PREFIX) else None
        form = None if forms is None else forms.read(order_id)
        if form is not None:
            return form_order(form, request, shown, self)
        identity = request.read_identity()
        is_guest = not (identity.scope or identity.user)  # a client can be any number of guests
        key = key_of(request, identity, order_id, self.settings.namespace)
        if key is None:
            return refusals.CHANGING if identity.authorization else refusals.NOBODY
        return Order(order_id, key, fingerprint_of(request), shown, guest=is_guest)

    def _refused_body(self, request: OrderRequest) -> Refusal | None:
        """The refusal of a body that cannot be compared with another try's; None if it can."""
        if request.unseen:
            return refusals.LENGTH_REQUIRED
        limit = self.settings.max_request
        return refusals.too_big(limit) if _is_larger(request, limit) else None


def _is_answer(response: OrderResponse) -> bool:
    """Whether a response that was made from an exception is the answer to the order."""
    return response.status >= HTTPStatus.BAD_REQUEST and storable(response.status)


def _is_larger(request: OrderRequest, limit: int) -> bool:
    """Whether the request exceeds ``limit`` bytes, by its Content-Length or by its content."""
    if request.content_length is not None and request.content_length > limit:
        return True
    payload = request.payload()
    if not (payload.form or payload.files):
        return len(payload.body) > limit
    files = sum(each.size for each in payload.files)
    if request.content_length is not None:  # decoded, fields may be longer than they were
        return files > limit
    fields = sum(len(text.encode(errors="surrogatepass")) for pair in payload.form for text in pair)
    return files + fields > limit


def _shown(request: OrderRequest) -> str:
    """For people. Escaped unless it is plain ASCII, because databases refuse some characters."""
    text = f"{request.method} {request.path}"[:LONGEST]
    if text.isascii() and text.isprintable():
        return text
    return quote(text, safe=" /:@!$&'()*+,;=", errors="replace")[:LONGEST]


def _store_down(failure: BackendError) -> Refusal:
    """Log the failure for the operator; the client learns only that a store is down."""
    log.error("an order is refused because a store failed: %s", failure)
    return refusals.STORE_DOWN
