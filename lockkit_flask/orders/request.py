"""The current request and its response, as the order engine reads them, and a stored answer."""

from __future__ import annotations

import hashlib
import sys
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import UUID

from flask import current_app, g, request, session, url_for
from werkzeug.wsgi import get_input_stream

from lockkit.model.errors import ConfigurationError
from lockkit.orders import Identity, OrderRequest, OrderResponse, Payload
from lockkit.orders.decisions import REPLAYED_HEADER
from lockkit.orders.forgery import with_token, without_tokens
from lockkit.orders.request import SentFile
from lockkit_flask.conf import dotted, flask_login_user
from lockkit_flask.leases import db_session
from lockkit_flask.orders.forms import guest, guest_of

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment
    from flask import Request, Response
    from werkzeug.datastructures import FileStorage

    from lockkit.orders import Order, OrderSettings, Replay
    from lockkit_flask.conf import UserHook

URL_ENCODED = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
CHUNK = 65536
_GUEST = "_lockkit_is_of_guest"


class RequestReader:
    """Reads requests for the engine; the hooks of the settings are imported once."""

    def __init__(self, settings: OrderSettings, user_pk: UserHook) -> None:
        self._user_pk = user_pk
        self._scope = dotted("LOCKKIT_ORDERS['SCOPE']", settings.scope)
        self._tenant = dotted("LOCKKIT_ORDERS['TENANT']", settings.tenant)
        self._recover = dotted("LOCKKIT_ORDERS['RECOVER']", settings.recover)
        self._limit = settings.max_request

    def read(self, request: Request) -> OrderRequest:
        environ = request.environ
        rule: Any = request.url_rule
        return OrderRequest(
            method=request.method,
            path=request.path,
            route=f"{rule.host or rule.subdomain or ''}{rule.rule}",
            header=request.headers.get,
            read_payload=lambda: self._payload(request),
            read_identity=lambda: self._identity(request),
            kwargs=request.view_args or {},
            query=list(request.args.items(multi=True)),
            media_type=request.mimetype,
            content_length=request.content_length,
            sent_path=environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", ""),
            unseen=_is_unseen(environ),
        )

    def recover(self, order: Order) -> OrderResponse | None:
        """What RECOVER knows of an order whose response was not kept; None: nothing."""
        if self._recover is None:
            return None
        answer = current_app.ensure_sync(self._recover)(request, order.order_id)
        response = None if answer is None else current_app.make_response(answer)
        answered = None if response is None else order_response(response, sys.maxsize)
        db_session.end_read()  # the view, if it runs now, must not see what the hook saw
        return answered

    def _payload(self, request: Request) -> Payload:
        vars(request).setdefault("stream", self._stream(request))
        # Cached: a form is parsed from it, and the view has it, too.
        body = b"" if request.mimetype == MULTIPART else request.get_data()
        if request.mimetype not in (URL_ENCODED, MULTIPART) or len(body) > self._limit:
            return Payload(body=body)
        files = [_file(name, file) for name, file in request.files.items(multi=True)]
        return Payload(form=list(request.form.items(multi=True)), files=files)

    def _stream(self, request: Request) -> IO[bytes]:
        """Of a body with a length, one that tells if it is cut short: its client went away.

        A server that says where a body ends says so of what is left of it, too.
        """
        environ = dict(request.environ)
        if request.content_length is not None:
            environ.pop("wsgi.input_terminated", None)
        most = self._limit + 1  # a chunked body could go on for ever; it is seen to be too large
        return get_input_stream(environ, True, min(request.max_content_length or most, most))

    def _user(self) -> str | None:
        """Raises ConfigurationError for what may be another text at the next request."""
        user = self._user_pk()
        if user is None or user == "":
            return None
        if isinstance(user, bool) or not isinstance(user, (str, int, UUID)):
            raise ConfigurationError(
                f"LOCKKIT_USER returns {type(user).__name__}; it must return the user's primary "
                f"key, as a string, an integer or a UUID, or None for nobody"
            )
        return f"{_model_of_user(self._user_pk)}:{user}"

    def _identity(self, request: Request) -> Identity:
        user = self._user()
        vars(request)[_GUEST] = user is None and "Authorization" not in request.headers
        return Identity(
            scope=self._scope(request) if self._scope else None,
            user=user,
            authorization=request.headers.get("Authorization"),
            session=_session_key(),
            tenant=(self._tenant(request) or "") if self._tenant else "",
            guest=guest_of(user),
        )


def _model_of_user(user_pk: UserHook) -> str:
    """The class of the user whom Flask-Login knows, or what stands for that of LOCKKIT_USER.

    Its module is left out: that may be another one in another deployment of the same app.
    """
    if user_pk is not flask_login_user:
        return "user"
    return type(import_module("flask_login").current_user._get_current_object()).__qualname__


def is_of_guest(request: Request) -> bool:
    """Whether this request, which was read, came without a user and without a token."""
    return bool(vars(request).get(_GUEST))


def _is_unseen(environ: WSGIEnvironment) -> bool:
    """Werkzeug reads a body without a length only where the server says that it ends."""
    chunked = "chunked" in environ.get("HTTP_TRANSFER_ENCODING", "").lower()
    return chunked and "wsgi.input_terminated" not in environ


def _session_key() -> str | None:
    """Of a session that the server has kept from an earlier request, else the ID of a guest."""
    sid = getattr(session, "sid", None)
    if sid and session and not session.new and _is_in_cookie(sid):
        return f"sid:{sid}"
    known = guest()
    return f"guest:{known}" if known else None


def _is_in_cookie(sid: str) -> bool:
    """Flask-Session draws another ID for each request without one, and calls no session new."""
    cookie = request.cookies.get(current_app.config["SESSION_COOKIE_NAME"], "")
    return cookie == sid or cookie.startswith(f"{sid}.")  # signed


def _file(field: str, file: FileStorage) -> SentFile:
    digest, size = hashlib.sha256(), 0
    while chunk := file.stream.read(CHUNK):
        digest.update(chunk)
        size += len(chunk)
    file.stream.seek(0)
    return SentFile(field, file.filename or "", size, digest.hexdigest(), file.content_type or "")


def order_response(response: Response, max_body: int) -> OrderResponse:
    """A body that streams is left alone, unless it says that it is small.

    An HTTPException's response does: Flask makes an iterator of what is in memory.
    """
    body = None if _streams(response, max_body) else response.get_data()
    answered = OrderResponse(response.status_code, list(response.headers.items()), body)
    return without_tokens(answered, _tokens())


def replayed(replay: Replay) -> Response:
    status, headers, body = with_token(replay.snapshot, _new_token)
    response = current_app.response_class(body, status)
    del response.headers["Content-Type"]  # Flask's default; the stored one, if any, follows
    response.headers.extend([*headers, REPLAYED_HEADER])
    return response


def asks_to_log_in(response: Response) -> bool:
    """Whether it is the redirect to the login page of Flask-Login."""
    manager = getattr(current_app, "login_manager", None)
    if manager is None or not 300 <= response.status_code < 400:  # noqa: PLR2004
        return False
    view = manager.blueprint_login_views.get(request.blueprint) or manager.login_view
    return view is not None and _path(response.location) == _path(_url_of(view))


def _streams(response: Response, max_body: int) -> bool:
    if response.direct_passthrough:
        return True
    length = response.headers.get("Content-Length", type=int)
    return response.is_streamed and (length is None or length > max_body)


def _url_of(view: str) -> str:
    """Flask-Login takes an endpoint, or a URL."""
    return view if view.startswith(("https://", "http://", "/")) else url_for(view)


def _path(url: str | None) -> str:
    return urlsplit(url or "").path


def _tokens() -> list[str]:
    """Flask-WTF's, against forgery: the one of this request, and the one of its form."""
    field = str(current_app.config.get("WTF_CSRF_FIELD_NAME", "csrf_token"))
    sent = request.form.get(field) if request.mimetype in (URL_ENCODED, MULTIPART) else None
    return [token for token in (g.get(field), sent) if isinstance(token, str)]


def _new_token() -> str:
    """For whoever asks now; empty where Flask-WTF is not there any more."""
    try:
        csrf = import_module("flask_wtf.csrf")
    except ImportError:
        return ""
    return str(csrf.generate_csrf())
