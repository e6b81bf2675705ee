"""Reads an order from Django's request, and its owner: by Django's or DRF's authentication, or by
SCOPE in the settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import SEEK_END, BytesIO
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.files.uploadhandler import load_handler
from django.core.handlers.wsgi import LimitedStream, WSGIRequest
from django.http import HttpRequest, QueryDict, RawPostDataException
from django.http.multipartparser import MultiPartParser
from django.utils.datastructures import MultiValueDict

from lockkit.model.errors import ConfigurationError
from lockkit.model.log import log
from lockkit.orders import Identity, OrderRequest, Payload
from lockkit.orders.order import MalformedOrderIdError, names_owner
from lockkit.orders.record import SentFile, as_sent
from lockkit.orders.visit import sent_file
from lockkit.web.name_fields import FORM_TYPES, MULTIPART, URL_ENCODED
from lockkit.web.refusal import request_label
from lockkit_django.orders.authorize import check_as_drf
from lockkit_django.web.request import query_string, user_behind

if TYPE_CHECKING:
    from django.core.files.uploadedfile import UploadedFile

    from lockkit_django.orders.visit import Visit

GUEST = "_lockkit_guest"
"""Key of a session: the secret of a guest's forms."""

USER = ("user", "auth")
"""Attributes of a request that DRF sets when it authenticates."""

SIGNED_COOKIES = "django.contrib.sessions.backends.signed_cookies"


def order_request(visit: Visit) -> OrderRequest:
    request: HttpRequest = visit.request
    match = request.resolver_match
    assert match is not None  # process_view comes after the resolver
    kwargs: dict[str, Any] = getattr(match, "captured_kwargs", None) or {}
    if match.args and not kwargs:
        kwargs = {str(i): value for i, value in enumerate(match.args)}
    return OrderRequest(
        method=request.method or "",
        path=request.path_info,
        route=_route(request, match.route),
        header=visit.header,
        read_payload=lambda: _payload(request),
        read_identity=lambda: _identity(visit),
        kwargs=kwargs,
        query=_query(request),
        media_type=(request.content_type or "").lower(),
        content_length=_content_length(request),
        sent_path=request.META["SCRIPT_NAME"] + request.META["PATH_INFO"],
        unseen=_is_unseen(request),
    )


def keep_body(request: HttpRequest, limit: int) -> None:
    """Read the body before the view's own framework consumes the stream.

    An upload by POST is not read, because Django and DRF keep it parsed. Neither is a body of more
    than ``limit`` bytes, because it will be refused, nor one that Django would refuse to read.
    """
    if request.method == "POST" and (request.content_type or "").lower() == MULTIPART:
        return
    if (_content_length(request) or 0) <= limit and _is_small(request):
        _body(request)


def _is_small(request: HttpRequest) -> bool:
    """Whether Django lets ``request.body`` read all of it."""
    most: int | None = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    return most is None or (_content_length(request) or 0) <= most


def _query(request: HttpRequest) -> Sequence[tuple[str, str]]:
    if not (request.META.get("QUERY_STRING") or "GET" in vars(request)):
        return ()
    return as_sent(_pairs(request.GET), lambda: query_string(request))


def _is_unseen(request: HttpRequest) -> bool:
    """Whether the view sees nothing of a body that has no length: on WSGI, Django reads none that
    is sent in chunks; on ASGI, it parses no upload."""
    if isinstance(request, WSGIRequest):
        chunked = "chunked" in request.META.get("HTTP_TRANSFER_ENCODING", "").lower()
        return chunked and _content_length(request) is None
    if (request.content_type or "").lower() != MULTIPART or request.META.get("CONTENT_LENGTH"):
        return False
    return bool(vars(request).get("_body") or _content_length(request))


def _route(request: HttpRequest, route: str) -> str:
    """The URL pattern. If the request has a URLconf of its own (hosts, tenants), its name, too."""
    urlconf = getattr(request, "urlconf", None)
    if urlconf is None:
        return route
    name = urlconf if isinstance(urlconf, str) else getattr(urlconf, "__name__", repr(urlconf))
    return f"{name}:{route}"


def _payload(request: HttpRequest) -> Payload:
    payload = _read(request)
    if _is_cut(request):
        raise MalformedOrderIdError("the request ended before its body did")
    return payload


def _is_cut(request: HttpRequest) -> bool:
    """Whether the body is shorter than announced: the client went away. Django does not tell."""
    kept = vars(request)
    stream = kept.get("_stream")
    if "_body" in kept:
        came = len(kept["_body"])
    elif isinstance(stream, LimitedStream):  # an upload is parsed while it arrives
        came = stream._pos  # type: ignore[attr-defined]  # the stubs do not know it
    else:
        return False
    return came < (_content_length(request) or 0)


def _read(request: HttpRequest) -> Payload:
    media_type = (request.content_type or "").lower()
    if media_type in FORM_TYPES:
        fields, files = _form(request, media_type)
        form: Sequence[tuple[str, str]] = _pairs(fields)
        if media_type == URL_ENCODED:
            form = as_sent(form, lambda: _body(request))
        sent = [_file(field, each) for field, several in files.lists() for each in several]
        return Payload(form=form, files=sent)
    return Payload(body=_body(request))


def _form(
    request: HttpRequest, media_type: str
) -> tuple[QueryDict, MultiValueDict[str, UploadedFile[bytes]]]:
    """Django parses the forms of POST only; this also parses those of PATCH and PUT.

    The body of a small upload is kept for hooks that read it, and for the parsers of a DRF view.
    """
    if request.method == "POST":
        if media_type == URL_ENCODED and not vars(request).get("_post"):
            _body(request)  # Django takes a body that was consumed for an empty form
        if media_type == MULTIPART and _is_small(request):
            with suppress(RawPostDataException):  # CSRF protection has parsed it
                _ = request.body
        form = request.POST, request.FILES
        vars(request)["_upload_handlers"] = []  # they are used: DRF's parser gets new ones
        return form
    if media_type == URL_ENCODED:
        return QueryDict(_body(request), encoding=request.encoding), MultiValueDict()
    handlers = [load_handler(path, request) for path in settings.FILE_UPLOAD_HANDLERS]
    stream = BytesIO(_body(request))
    return MultiPartParser(request.META, stream, handlers, request.encoding).parse()


def _body(request: HttpRequest) -> bytes:
    try:
        return request.body
    except RawPostDataException:
        raise ConfigurationError(
            "the body of an order was read before IdempotentOrderMiddleware could look at it; "
            "read request.body instead of the stream"
        ) from None


def _pairs(fields: QueryDict) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, values in fields.lists() for value in values]


def _file(field: str, upload: UploadedFile[bytes]) -> SentFile:
    parameters = [f"{name}={value!r}" for name, value in (upload.content_type_extra or {}).items()]
    kind = "; ".join([upload.content_type or "", *parameters])
    return sent_file(field, upload.name or "", upload, kind)


def _content_length(request: HttpRequest) -> int | None:
    """The length of the body in bytes, as the client says. A chunked body has a length if the
    server keeps all of it in a file (ASGI); otherwise None."""
    text = str(request.META.get("CONTENT_LENGTH") or "")
    if text.isdecimal():
        return int(text)
    return _spooled(vars(request).get("_stream"))


def _spooled(stream: Any) -> int | None:
    """The size of a body that the server keeps in a file. Loads nothing, and keeps the position."""
    if not isinstance(stream, SpooledTemporaryFile) or stream.closed:
        return None
    position = stream.tell()
    size = stream.seek(0, SEEK_END)
    stream.seek(position)
    return size


def _identity(visit: Visit) -> Identity:
    """The sender. DRF authenticates inside its views. Here this is done before the view, unless the
    order is opened inside of it.

    Raises AnsweredError if authentication, or a permission of DRF's class, refuses.
    """
    if visit.options.inside or not visit.by_drf:
        return visit.identity()
    with as_sender(visit):
        check_as_drf(visit.request, visit.view)
        visit.sender = _user_in(visit.request)
        return visit.identity()


def in_signed_cookies(session: type[object]) -> bool:
    """Whether sessions of this class live in their cookies."""
    return any(base.__module__ == SIGNED_COOKIES for base in session.__mro__)


def guest_of(request: HttpRequest) -> str | None:
    """The secret in the session of this request, if a form was shown to it as a guest."""
    session = getattr(request, "session", None)
    found = None if session is None else session.get(GUEST)
    return found if isinstance(found, str) else None


def is_drf(view: object) -> bool:
    """Whether this is what ``as_view`` of a DRF view returns."""
    return hasattr(getattr(view, "cls", None), "initialize_request")


@contextmanager
def as_sender(visit: Visit) -> Iterator[None]:
    """Give the request the user whom DRF has authenticated, but only inside the block: later, in
    the view, DRF's SessionAuthentication would trust it."""
    request, before = visit.request, _user_in(visit.request)
    vars(request).update(visit.sender)
    try:
        yield
    finally:
        for key in USER:
            vars(request).pop(key, None)
        vars(request).update(before)


def _user_in(request: HttpRequest) -> dict[str, Any]:
    return {key: vars(request)[key] for key in USER if key in vars(request)}


def user_of(request: HttpRequest, *, by_drf: bool) -> str | None:
    """The user, as a text that is unique over all user models: customer 7 is not clerk 7."""
    user = user_behind(request, by_drf=by_drf)
    if user is None:
        return None
    meta = getattr(user, "_meta", None)
    # Not type(user), which is SimpleLazyObject for every user.
    return f"{meta.label if meta else user.__class__.__qualname__}:{user.pk}"


def session_of(request: HttpRequest) -> str | None:
    """The key of a session that the store knows: a made-up cookie belongs to nobody.

    A session that lives in its cookie has no key that stays the same.
    """
    session = getattr(request, "session", None)
    if session is None or in_signed_cookies(type(session)):
        return None
    session.keys()  # loads it, which clears the key of an unknown one
    return session.session_key if not session.is_empty() else None


def tell_of_new_session(request: HttpRequest, before: str | None) -> None:
    """Warn if the view of a guest's order has given the session another key. The order belongs to
    the session with the key ``before``."""
    session: Any = getattr(request, "session", None)
    if before is None or session.session_key == before:
        return
    if names_owner(request.headers.get("Authorization")):
        return
    if GUEST in session:
        return  # the guest's secret stays in the session, and the orders of forms belong to that
    log.warning(
        "%s was an order of the visitor's session, and its view has given the session another "
        "key, as login() does: a repeat of this order would be another one. Let the visitor log in "
        "before or after it, or let SCOPE name its owner",
        request_label(request),
    )
