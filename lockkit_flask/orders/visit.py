"""A Flask request at its view, for ``lockkit.orders.gate``."""

from __future__ import annotations

from collections.abc import Callable, Collection
from importlib import import_module
from io import BytesIO
from typing import TYPE_CHECKING, Any

from flask import current_app, request, session
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.wsgi import get_host, get_input_stream

from lockkit.model.errors import ConfigurationError
from lockkit.orders import OrderRequest, OrderResponse, Payload, visit
from lockkit.orders.forgery import without_tokens
from lockkit.orders.login import has_field, leads_to
from lockkit.orders.order import names_owner
from lockkit.orders.visit import ViewOptions, options_in, sent_file
from lockkit.web.name_fields import FORM_TYPES, MULTIPART
from lockkit_flask import signals
from lockkit_flask.leases import db_session, request_leases
from lockkit_flask.leases.db_session import ORDER, behind
from lockkit_flask.orders.authorize import (
    checked_by,
    is_way_back_kept,
    login_pages,
    unknown_check,
)
from lockkit_flask.orders.forms import csrf_tokens, guest, guest_of, is_csrf_field, user_of
from lockkit_flask.web.refusals import refused
from lockkit_flask.web.view_functions import places_of, view_of

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment
    from flask import Request, Response
    from werkzeug.routing import Rule

    from lockkit.orders import Order, Proceed, Snapshot
    from lockkit.orders.record import Identity, SentFile
    from lockkit_flask.orders.app_orders import AppOrders
    from lockkit_flask.orders.open_order import OpenOrder


class Visit(visit.Visit):
    """The current request."""

    captured: OrderResponse | None = None  #: what the view has answered
    sent: Collection[tuple[str, str]] = ()  #: the headers of that, before hooks
    refuse = staticmethod(refused)

    def __init__(self, app_orders: AppOrders, options: ViewOptions) -> None:
        super().__init__(app_orders.orders, behind(request), options)
        self.records = app_orders.records
        if options.using is not None and not self.orders.claims:
            self.records = app_orders.records.of(options.using)
        self._app_orders, self.thread = app_orders, app_orders.thread
        self.to_sync = current_app.async_to_sync
        self.of_guest = False  #: it came without an owner of SCOPE, a user and a token

    def read(self) -> OrderRequest:
        request: Request = self.request
        environ, rule = request.environ, request.url_rule
        assert rule is not None
        return OrderRequest(
            method=request.method,
            path=request.path,
            route=f"{_place_of(request, rule)}{rule.rule}",
            header=request.headers.get,
            read_payload=self._payload,
            read_identity=self.identity,
            kwargs=request.view_args or {},
            query=list(request.args.items(multi=True)),
            media_type=request.mimetype,
            content_length=request.content_length,
            sent_path=environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", ""),
            unseen=_is_unseen(environ),
        )

    def begins(self) -> None:
        db_session.end_read()

    def open(self, decision: Proceed) -> OpenOrder:
        return self._app_orders.open(self, decision)

    def attach(self, opened: OpenOrder) -> None:  # type: ignore[override]
        opened.context, opened.outer = request_leases.this_context(), ORDER.get()
        ORDER.set(opened)
        self.request.order = opened

    def detach(self, opened: OpenOrder) -> None:  # type: ignore[override]
        if ORDER.get() is opened:  # a view may have sent an app another order
            ORDER.set(opened.outer)
        if opened.kept is not None:
            opened.kept.give_back()

    def send(self, signal: str, order: Order) -> None:
        signals.send(getattr(signals, signal), order)

    def respond(self, snapshot: Snapshot) -> Response:
        response = current_app.response_class(snapshot.body, snapshot.status)
        del response.headers["Content-Type"]  # Flask's default; the stored one, if any, follows
        response.headers.extend(list(snapshot.headers))
        return response

    def new_token(self) -> str:
        """Flask-WTF's token; empty if Flask-WTF is not installed any more."""
        try:
            csrf = import_module("flask_wtf.csrf")
        except ImportError:
            return ""
        return str(csrf.generate_csrf())

    def order_response(self, response: Response) -> OrderResponse:
        """A response as it may be stored. A body that streams is left alone, unless its
        Content-Length is at most MAX_RESPONSE: for an HTTPException, Flask makes a stream of a body
        that is in memory.
        """
        most = self.orders.settings.max_response
        length = response.headers.get("Content-Length", type=int)
        is_long = response.is_streamed and (length is None or length > most)
        body = None if response.direct_passthrough or is_long else response.get_data()
        answered = OrderResponse(response.status_code, list(response.headers.items()), body)
        tokens = csrf_tokens()
        return without_tokens(answered, tokens) if tokens else answered

    def asks_to_log_in(self, response: Response) -> bool:
        """Whether this is Flask-Login's redirect to its login page."""
        manager = getattr(current_app, "login_manager", None)
        if manager is None or not 300 <= response.status_code < 400:  # noqa: PLR2004
            return False
        request: Request = self.request
        view = manager.blueprint_login_views.get(request.blueprint) or manager.login_view
        path = f"{request.script_root}{request.path}"
        pages = [*login_pages(view), *login_pages(manager.refresh_view)]
        return leads_to(response.location, pages, get_host(request.environ), path)

    def leads_back(self, response: Response) -> bool:
        return has_field(response.location or "", ["next"]) or is_way_back_kept()

    def answered(self, response: Response) -> OrderResponse | None:
        return self.captured

    def capture(self, response: Response) -> None:
        """Take the answer from the response as it is now: hooks of the app will change it."""
        self.captured = super().answered(response)

    def recover(self, order: Order) -> OrderResponse | None:
        found = super().recover(order)
        if self.orders.settings.recover is not None:
            db_session.end_read()  # the view, if it runs now, must not see what the hook saw
        return found

    def recovered(self, answer: Any) -> OrderResponse:
        response = current_app.make_response(answer)
        response.direct_passthrough = False
        response.make_sequence()  # it is read whole, as a stream or a file
        found = self.order_response(response)
        response.close()
        return found

    def unknown_check(self) -> str | None:
        view, method = view_of(self.request), self.request.method
        return unknown_check(behind(current_app), view, method, self.options.below)

    def if_checks_pass(self, give: Callable[[], Any]) -> Any:
        below = self.options.below
        return checked_by(view_of(self.request), self.request.method, below, give)

    def _payload(self) -> Payload:
        request: Request = self.request
        limit = self.orders.settings.max_request
        most = limit + 1  # a chunked body may go on for ever; one byte shows it is too large
        most = min(request.max_content_length or most, most)
        vars(request).setdefault("stream", get_input_stream(request.environ, True, most))
        body = _body_of(request)
        is_form = request.mimetype in FORM_TYPES and len(body) <= limit
        try:
            form, files = _form_of(request) if is_form else ([], [])
        except RequestEntityTooLarge:
            stream = request.stream
            if getattr(stream, "limit", 0) <= limit or not getattr(stream, "is_exhausted", False):
                raise  # a limit of the app's
            return Payload(body=bytes(most))  # what was read of an upload, or as much
        if request.mimetype != MULTIPART:
            vars(request)["stream"] = BytesIO(body)  # a view may read that, too
        # Werkzeug reads no field of a form with a byte that is not UTF-8.
        return Payload(form=form, files=files, body=b"" if is_form and request.form else body)

    def known(self) -> visit.Known:
        user = user_of(self._app_orders.user_pk)
        return user, _session_key(), guest_of(user)

    def identity(self) -> Identity:
        found = super().identity()
        self.of_guest = not (found.scope or found.user or names_owner(found.authorization))
        return found


CODINGS = frozenset({"br", "compress", "deflate", "gzip", "x-compress", "x-gzip", "zstd"})
"""A middleware of WSGI may have decoded these: then the length is not that of the stream."""


def expect_whole_body(_: object, **__: object) -> None:
    """Have Werkzeug raise if a body with a length is cut short, because its client went away.

    A server that marks the end of a body also marks the end of a cut one. Called before every
    hook: any of them may be the first to read the body.
    """
    named = request.headers.get("Content-Encoding", "").lower().split(",")
    if request.content_length is not None and CODINGS.isdisjoint(map(str.strip, named)):
        request.environ.pop("wsgi.input_terminated", None)


def options_of(view: Any, method: str) -> ViewOptions:
    """The options of a view: on this method, on the function, or on the class."""
    return options_in(reversed(places_of(view, method)))


def _body_of(request: Request) -> bytes:
    """The body; empty for an upload, and for a form that was parsed without it. One that has no
    field may have been parsed after its body was consumed.

    It is cached: a form is parsed from it, and the view has it, too.
    """
    if request.mimetype == MULTIPART:
        return b""
    is_parsed = request.mimetype in FORM_TYPES and bool(vars(request).get("form"))
    body = request.get_data()
    if request.content_length and not (body or is_parsed):
        raise ConfigurationError(
            "the body of an order was read before lockkit could look at it: call "
            "request.get_data() instead of reading request.stream, and without cache=False"
        )
    return body


def _form_of(request: Request) -> tuple[list[tuple[str, str]], list[SentFile]]:
    files = [
        sent_file(name, file.filename or "", file.stream, file.content_type or "")
        for name, file in request.files.items(multi=True)
    ]
    fields = request.form.items(multi=True)
    return [each for each in fields if not is_csrf_field(*each)], files


def _place_of(request: Request, rule: Rule) -> str:
    """The host of a route. If it has parameters, such as a shop's name, the host as it was sent."""
    place = rule.host or rule.subdomain or ""
    return request.host.lower() if "<" in place else place


def _is_unseen(environ: WSGIEnvironment) -> bool:
    """Werkzeug reads a body without a length only where the server says that it ends."""
    chunked = "chunked" in environ.get("HTTP_TRANSFER_ENCODING", "").lower()
    return chunked and "wsgi.input_terminated" not in environ


def _session_key() -> str | None:
    """The ID of a session that the server kept from an earlier request; otherwise the guest's."""
    sid = getattr(session, "sid", None)
    if sid and session and not session.new and _is_in_cookie(sid):
        return f"sid:{sid}"
    known = guest()
    return f"guest:{known}" if known else None


def _is_in_cookie(sid: str) -> bool:
    """Whether the client sent this session ID. Flask-Session makes one for each request that has
    none, and never calls that session new."""
    cookie = request.cookies.get(current_app.config["SESSION_COOKIE_NAME"], "")
    return cookie == sid or cookie.startswith(f"{sid}.")  # signed
