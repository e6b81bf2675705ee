"""Order IDs for plain HTML forms, and guests: whose order it is if nobody is logged in. Also the
tokens of Flask-WTF, which do not belong to an order or its answer.

A guest's secret lives in a signed cookie of its own, because many apps clear the session when
somebody logs in. ``lockkit.orders.forms`` says what the secret is for. The first answer to a user
who has the cookie makes the secret the user's: after the logout nobody else at this computer can
use it.
"""

from __future__ import annotations

import hashlib
from importlib import import_module
from typing import TYPE_CHECKING, Any
from uuid import UUID

from flask import after_this_request, current_app, g, has_request_context, request, session
from itsdangerous import BadData, URLSafeTimedSerializer
from markupsafe import Markup

from lockkit.model.errors import ConfigurationError
from lockkit.model.log import log
from lockkit.orders.forms import FormIds, field_of, hidden_field, new_secret
from lockkit.web.name_fields import FORM_TYPES
from lockkit_flask.conf import flask_login_user
from lockkit_flask.state import app_locks

if TYPE_CHECKING:
    from flask import Response

    from lockkit.orders import OrderSettings
    from lockkit_flask.conf import UserHook

_GUEST = "lockkit_guest"
_SECRET = "lockkit.guest"  # noqa: S105  a key of the environ


def order_id_field(field: str | None = None) -> Markup:
    """The hidden field with a new order ID, for a form that is shown to this visitor.

    Its name is the one in LOCKKIT_ORDERS["ORDER_ID"]. ``field``: another name, for a view with
    ``@idempotent(order_id="form:…")``. A guest gets a cookie, so the headers of the answer must not
    have been sent yet. The answer is marked ``private``, for caches. Raises ConfigurationError
    without SECRET_KEY or LOCKKIT_ORDERS, and if ORDER_ID names no form field.
    """
    name = field_of(_order_settings(), field)
    return Markup(hidden_field(name, new_order_id()))  # noqa: S704  escaped there


def new_order_id() -> str:
    """A new order ID, without the field: for the header ``Idempotency-Key``, or for a field that
    you write yourself. Raises ConfigurationError without SECRET_KEY or LOCKKIT_ORDERS."""
    _order_settings()
    after_this_request(_only_for_this_visitor)
    return form_ids.issue(_secret() if user_of(app_locks().config.user_pk) is None else None)


def remember_guest() -> None:
    """Give the visitor's session a random ID, if it has none, so that orders can belong to it.

    Call this in the view that shows the order form: Flask's own sessions have no ID.
    """
    if _GUEST not in session:
        session[_GUEST] = new_secret()


def guest() -> str | None:
    """The ID that ``remember_guest`` gave to this session; None if it was not called."""
    found = session.get(_GUEST)
    return found if isinstance(found, str) else None


def guest_of(user: str | None) -> str | None:
    """The secret in this request's cookie; None if it belongs to another user by now."""
    secret, _, owner = (_brought() or "").partition(".")
    if owner and (user is None or owner != _mark(secret, user)):
        return None
    return secret or None


def user_of(user_pk: UserHook) -> str | None:
    """The user, as the owner of orders and of a guest's secret. None for nobody.

    Raises ConfigurationError for a value whose text may differ at the next request.
    """
    user = user_pk()
    if user is None or user == "":
        return None
    if isinstance(user, bool) or not isinstance(user, (str, int, UUID)):
        raise ConfigurationError(
            f"LOCKKIT_USER returns {type(user).__name__}; it must return the user's primary "
            f"key, as a string, an integer or a UUID, or None for nobody"
        )
    model = "user"
    if user_pk is flask_login_user:
        model = type(import_module("flask_login").current_user._get_current_object()).__qualname__
    return f"{model}:{user}"  # without its module, which another deployment may have renamed


def _order_settings() -> OrderSettings:
    settings = app_locks().config.orders if has_request_context() else None
    if settings is None:
        raise ConfigurationError("order_id_field() needs a request, and LOCKKIT_ORDERS")
    return settings


def _keys() -> list[Any]:
    return [current_app.secret_key, *(current_app.config.get("SECRET_KEY_FALLBACKS") or ())]


form_ids = FormIds(_keys)
"""With the keys of the current app."""


def _secret() -> str:
    """The secret of this guest, the same for all forms on a page."""
    secret = guest_of(None) or request.environ.get(_SECRET)
    if secret is None:
        secret = request.environ[_SECRET] = new_secret()
        after_this_request(lambda response: _give(response, secret))
    return str(secret)


def hand_over(response: Response) -> Response:
    """A guest's secret becomes that of the user who has logged in. Called when the order is final:
    a login that was undone with it gives nothing away."""
    if getattr(getattr(request, "order", None), "undone", False):
        return response
    text = _brought()
    is_static = (request.endpoint or "").rpartition(".")[2] == "static"  # also of a blueprint
    if text is None or "." in text or is_static or response.cache_control.public:
        return response
    try:
        user = user_of(app_locks().config.user_pk)
    except Exception as error:  # noqa: BLE001  the app's function may refuse if there is no user
        log.debug("LOCKKIT_USER failed after a request: %s", type(error).__name__)
        return response
    return response if user is None else _give(response, f"{text}.{_mark(text, user)}")


def _brought() -> str | None:
    sealed = request.cookies.get(_name())
    return None if sealed is None else form_ids.unseal(sealed)


def _give(response: Response, text: str) -> Response:
    interface = current_app.session_interface
    partitioned = getattr(interface, "get_cookie_partitioned", None)  # since Flask 3.1
    response.set_cookie(
        _name(),
        form_ids.seal(text),
        domain=interface.get_cookie_domain(current_app),
        path=interface.get_cookie_path(current_app),
        secure=interface.get_cookie_secure(current_app),
        samesite=interface.get_cookie_samesite(current_app) or "Lax",
        httponly=True,
        **({"partitioned": partitioned(current_app)} if partitioned else {}),
    )
    return response


def _name() -> str:
    """The cookie's name, made from that of the session's cookie: two apps on one host need
    different names for both."""
    return f"{current_app.config['SESSION_COOKIE_NAME']}-lockkit"


def _only_for_this_visitor(response: Response) -> Response:
    response.vary.add("Cookie")
    response.cache_control.public = False
    response.cache_control.private = True
    return response


def _mark(secret: str, user: str) -> str:
    """A mark of the user. The cookie is sealed, so the mark only has to hide who it is."""
    return hashlib.sha256(f"{secret}\0{user}".encode()).hexdigest()


def csrf_tokens() -> list[str]:
    """Flask-WTF's tokens against forgery: the one that this request made, and the one it sent."""
    field = _csrf_field()
    made, sent = g.get(field), _sent_token(field)
    tokens = [made if _is_of_wtf(made) else None, sent if sent and _is_accepted(sent) else None]
    return [token for token in tokens if token is not None]


def is_csrf_field(name: str, value: str) -> bool:
    """Whether a field of a form, which may have a prefix, is a token of Flask-WTF: a repeat of the
    form may have another one."""
    return name.endswith(_csrf_field()) and _is_of_wtf(value)


def _csrf_field() -> str:
    return str(current_app.config.get("WTF_CSRF_FIELD_NAME", "csrf_token"))


def _sent_token(field: str) -> str | None:
    """What Flask-WTF would check: the first of these that is not empty."""
    form = request.form.to_dict() if request.mimetype in FORM_TYPES else {}
    fields = [field, *(name for name in form if name.endswith(field))]  # of a form with a prefix
    headers = current_app.config.get("WTF_CSRF_HEADERS", ("X-CSRFToken", "X-CSRF-Token"))
    return next(filter(None, (*map(form.get, fields), *map(request.headers.get, headers))), None)


def _is_of_wtf(made: object) -> bool:
    """Whether Flask-WTF has signed it: an app may have a token of its own at the same place."""
    secret = current_app.config.get("WTF_CSRF_SECRET_KEY", current_app.secret_key)
    if not isinstance(made, str) or not secret:
        return False
    try:  # nothing else of an unsigned text is read: it may be a client's, and compressed
        URLSafeTimedSerializer(secret, salt="wtf-csrf-token").loads(made)
    except BadData:
        return False
    return True


def _is_accepted(token: str) -> bool:
    """Whether Flask-WTF accepts it. Any other text is the client's choice, and may be anywhere."""
    if g.get("csrf_valid"):
        return True
    try:
        import_module("flask_wtf.csrf").validate_csrf(token)
    except (ImportError, ValueError, RuntimeError):  # the last: without a SECRET_KEY
        return False
    return True
