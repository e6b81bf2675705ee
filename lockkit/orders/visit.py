"""What orders need from a framework about one request: read it, answer it, and open its order."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from http import HTTPStatus
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, NamedTuple

from lockkit.model.errors import ConfigurationError
from lockkit.model.log import log
from lockkit.orders import refusals
from lockkit.orders.decisions import REPLAYED_HEADER, news_of
from lockkit.orders.forgery import with_token
from lockkit.orders.order import IdSource, Order
from lockkit.orders.record import (
    UNLIMITED,
    Identity,
    RecordState,
    SentFile,
    snapshot_of,
    storable,
)
from lockkit.web.refusal import ORDER_ID, Refusal, request_label

if TYPE_CHECKING:
    from lockkit.orders.decisions import Decision, Proceed
    from lockkit.orders.engine import Orders
    from lockkit.orders.gate import OpenOrder, Runner
    from lockkit.orders.record import OrderRequest, OrderResponse, Snapshot


Known = tuple[str | None, str | None, str | None]
"""A user, a session and a guest's secret: see ``Visit.known``."""

OPTIONS = "_lockkit_idempotent"
"""Attribute of a view, its class or its method: its ViewOptions."""


class ViewOptions(NamedTuple):
    """Overrides of LOCKKIT_ORDERS for one view; None: as the settings say."""

    sources: tuple[IdSource, ...] | None = None
    required: bool | None = None
    using: str | None = None
    atomic: bool = True  #: the view runs in the order's transaction; False: it commits itself
    exempt: bool = False
    inside: bool = False  #: the order is opened below the view's checks
    below: Any = None  #: the function that ``@idempotent`` decorates, if any


CHUNK = 65536  # bytes of a file that are read at a time
NO_OPTIONS = ViewOptions()


def options_in(places: Iterable[Any]) -> ViewOptions:
    """The options of the first of these places that has any."""
    for place in places:
        found = getattr(place, OPTIONS, None)
        if isinstance(found, ViewOptions):
            return found
    return NO_OPTIONS


class AnsweredError(Exception):
    """The view would refuse this request: ``response`` is its answer."""

    def __init__(self, response: Any) -> None:
        super().__init__()
        self.response = response


class Visit(ABC):
    """One request that may be an order. With ``options.inside``, the view's checks have passed.

    ``open``, ``attach``, ``detach`` and ``refuse`` may be called in an event loop. All others are
    called on the thread that has the request's database connections.
    """

    thread: Runner  #: for blocking requests
    records: Any  #: where records are kept, with blocking calls
    to_sync: Callable[..., Any]  #: the framework's ``async_to_sync``
    is_known = False  #: its sender has logged in, or SCOPE knows them
    has_saved = False  #: it is certain that the view has saved something

    def __init__(self, orders: Orders, request: Any, options: ViewOptions) -> None:
        self.orders, self.request, self.options = orders, request, options
        vars(request).setdefault(ORDER_ID)

    @abstractmethod
    def read(self) -> OrderRequest:
        """The request. Nothing is read from the client or a store until the engine asks for it.

        ``read_identity`` raises AnsweredError if authentication refuses.
        """

    @abstractmethod
    def known(self) -> Known:
        """The user, the session and the guest's secret, as the framework knows them."""

    @abstractmethod
    def begins(self) -> None:
        """The request is an order: what its transactions did before is not part of the order."""

    @abstractmethod
    def open(self, decision: Proceed) -> OpenOrder:
        """Make an OpenOrder and attach it to the request, so that it is ended. Does no I/O."""

    @abstractmethod
    def attach(self, opened: OpenOrder) -> None:
        """Note that this is the request's open order."""

    @abstractmethod
    def detach(self, opened: OpenOrder) -> None:
        """Note that the request has no open order any more. May be called again."""

    @abstractmethod
    def send(self, signal: str, order: Order) -> None:
        """Send the framework's signal of this name. Raises nothing."""

    @abstractmethod
    def refuse(self, refusal: Refusal) -> Any: ...

    @abstractmethod
    def respond(self, snapshot: Snapshot) -> Any:
        """A response with this status, these headers and this body, and no other headers."""

    @abstractmethod
    def new_token(self) -> str:
        """A token against forged requests (CSRF), for the client of this request."""

    @abstractmethod
    def order_response(self, response: Any) -> OrderResponse | None:
        """The parts of a response that may be stored; None if they are not known."""

    @abstractmethod
    def asks_to_log_in(self, response: Any) -> bool:
        """Whether it redirects to a login page."""

    @abstractmethod
    def leads_back(self, response: Any) -> bool:
        """Whether such a redirect says where to go after the login, as a framework's checks do."""

    @abstractmethod
    def recovered(self, answer: Any) -> OrderResponse:
        """What the RECOVER hook returned, as a response that may be stored."""

    @abstractmethod
    def unknown_check(self) -> str | None:
        """The name of something in the view that may be a check and cannot be asked; None if there
        is nothing of that kind. See ``view_checks``."""

    @abstractmethod
    def if_checks_pass(self, give: Callable[[], Any]) -> Any:
        """What ``give`` returns if the view's checks pass now; otherwise their answer, or a 403."""

    def header(self, name: str) -> str | None:
        """A header of the request."""
        value: str | None = self.request.headers.get(name)
        return value

    def value_of(self, answer: Any) -> Any:
        """What a function of the application returned; an awaitable is awaited."""

        async def awaited() -> Any:
            return await answer

        return self.to_sync(awaited)() if isawaitable(answer) else answer

    def identify(self) -> Any:
        """The order; None if the request is not an order; otherwise a response that refuses it."""
        options = self.options
        try:
            order = self.orders.identify(
                self.read(), sources=options.sources, required=options.required
            )
        except AnsweredError as answered:
            return answered.response
        if isinstance(order, Order):
            self._check_using()
            vars(self.request)[ORDER_ID] = order.order_id
            self.begins()
        return self.refuse(order) if isinstance(order, Refusal) else order

    def tell(self, decision: Decision, order: Order) -> None:
        """Send the signals of this decision, if it has any."""
        for name in news_of(decision):
            self.send(name, order)

    def identity(self) -> Identity:
        """The sender, by the settings' hooks and what the framework knows: user, session, guest."""
        scope = self._text("scope")
        user, session, guest = self.known()
        self.is_known = bool(scope or user)
        return Identity(
            scope=scope,
            user=user,
            authorization=self.header("Authorization"),
            session=session,
            tenant=self._text("tenant") or "",
            guest=guest,
        )

    def recover(self, order: Order) -> OrderResponse | None:
        """What the RECOVER hook knows of an order that has no stored response; None: nothing."""
        hook = self.orders.hook("recover")
        answer = None if hook is None else self.value_of(hook(self.request, order.order_id))
        if answer is None:
            return None
        found = self.recovered(answer)
        if not storable(found.status) or snapshot_of(found, UNLIMITED)[0] is not RecordState.DONE:
            log.error(
                "%s returned an answer that cannot be kept, so it is not given: its status is %d, "
                "or its body is encoded, or its headers are too long",
                self.orders.settings.recover,
                found.status,
            )
        return found

    def guarded(self, give: Callable[[], Any]) -> Any:
        """What ``give`` returns if the client may see a stored answer now; otherwise a refusal. If
        AUTHORIZE_REPLAY is set, it decides alone."""
        hook = self.orders.hook("authorize_replay")
        if hook is not None:
            return give() if self.may_see(hook) else self.refuse(refusals.NOT_ALLOWED)
        if (check := self.unknown_check()) is not None:
            log.warning(
                "%r gets no stored answer, because %s may be a check of its own: put @idempotent "
                "on the view itself, or set AUTHORIZE_REPLAY",
                request_label(self.request),
                check,
            )
            return self.refuse(refusals.not_replayable())
        return self.if_checks_pass(give)

    def may_see(self, hook: Callable[..., Any]) -> bool:
        """What the AUTHORIZE_REPLAY hook says."""
        return bool(self.value_of(hook(self.request)))

    def replay(self, snapshot: Snapshot) -> Any:
        """The stored response, marked as a replay. Only its tokens are new: see ``forgery``."""
        fresh = with_token(snapshot, self.new_token)
        return self.respond(fresh._replace(headers=(*fresh.headers, REPLAYED_HEADER)))

    def answered(self, response: Any) -> OrderResponse | None:
        """What the view has answered. A redirect to a login page counts as 401, a refusal. But if
        it does not say where to go next, it is the answer to those who have logged in already."""
        seen = self.order_response(response)
        if seen is None or not self.asks_to_log_in(response):
            return seen
        if not self.leads_back(response):
            if self.is_known or self.has_saved:
                return seen
            log.warning(
                "%r sends a guest to the login page, so it counts as refused, and a repeat runs "
                "its view again. If that is its answer, let it redirect to another page; if not, "
                "add the field that says where to go next",
                request_label(self.request),
            )
        return seen._replace(status=HTTPStatus.UNAUTHORIZED)

    def _check_using(self) -> None:
        if self.orders.claims and self.options.using is not None:
            raise ConfigurationError(
                f"@idempotent(using={self.options.using!r}) names a database, but "
                f"LOCKKIT_ORDERS['STORE'] is 'redis': such an order has no effects in a database"
            )

    def _text(self, name: str) -> str | None:
        path = getattr(self.orders.settings, name)
        hook = path and self.orders.hook(name)
        answer = hook(self.request) if hook else None
        if answer is not None and not isinstance(answer, str):
            raise ConfigurationError(f"{path} must return a string or None, not {type(answer)}")
        return answer


def sent_file(field: str, name: str, file: Any, content_type: str) -> SentFile:
    """An uploaded file. Reads all of it, and goes back to its first byte for the view."""
    digest, size = hashlib.sha256(), 0
    file.seek(0)
    while chunk := file.read(CHUNK):
        digest.update(chunk)
        size += len(chunk)
    file.seek(0)
    return SentFile(field, name, size, digest.hexdigest(), content_type)
