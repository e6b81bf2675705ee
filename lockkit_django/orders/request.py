"""What an order is made of, read from Django's request."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
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
from lockkit.orders import Identity, OrderRequest, Payload
from lockkit.orders.orderid import MalformedOrderIdError
from lockkit.orders.request import SentFile, as_sent
from lockkit_django.web.request import query_string

if TYPE_CHECKING:
    from django.core.files.uploadedfile import UploadedFile


URLENCODED = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"


def order_request(request: HttpRequest, read_identity: Callable[[], Identity]) -> OrderRequest:
    """Nothing is read from the client or a store before the engine asks for it."""
    match = request.resolver_match
    assert match is not None  # process_view comes after the resolver
    captured: dict[str, Any] = getattr(match, "captured_kwargs", None) or {}
    positional = {} if captured else {str(i): value for i, value in enumerate(match.args)}
    return OrderRequest(
        method=request.method or "",
        path=request.path_info,
        route=_route(request, match.route),
        header=request.headers.get,
        read_payload=lambda: _payload(request),
        read_identity=read_identity,
        kwargs={**positional, **captured},
        query=as_sent(_pairs(request.GET), lambda: query_string(request)),
        media_type=(request.content_type or "").lower(),
        content_length=_content_length(request),
        sent_path=request.META["SCRIPT_NAME"] + request.META["PATH_INFO"],
        unseen=_is_unseen(request),
    )


def keep_body(request: HttpRequest, limit: int) -> None:
    """Read the body before the view's own framework consumes the stream.

    Not a posted upload, which Django and DRF keep parsed, and nothing beyond ``limit`` bytes,
    which will be refused.
    """
    if request.method == "POST" and (request.content_type or "").lower() == MULTIPART:
        return
    if (_content_length(request) or 0) <= limit:
        _body(request)


def _is_unseen(request: HttpRequest) -> bool:
    """Django on WSGI reads nothing of a body that is sent in chunks, without a length."""
    chunked = "chunked" in request.META.get("HTTP_TRANSFER_ENCODING", "").lower()
    return chunked and isinstance(request, WSGIRequest) and _content_length(request) is None


def _route(request: HttpRequest, route: str) -> str:
    """The URL pattern; a request with URLs of its own (hosts, tenants) has other routes."""
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
    """Whether less came than the client had announced: it went away, and Django does not care."""
    kept = vars(request)
    stream = kept.get("_stream")
    if "_body" in kept:
        came = len(kept["_body"])
    elif isinstance(stream, LimitedStream):  # of an upload, which is parsed on its way
        came = stream._pos  # type: ignore[attr-defined]  # the stubs do not know it
    else:
        return False
    return came < (_content_length(request) or 0)


def _read(request: HttpRequest) -> Payload:
    media_type = (request.content_type or "").lower()
    if media_type in (URLENCODED, MULTIPART):
        fields, files = _form(request, media_type)
        form: Sequence[tuple[str, str]] = _pairs(fields)
        if media_type == URLENCODED:
            form = as_sent(form, lambda: _body(request))
        return Payload(form=form, files=_files(files))
    return Payload(body=_body(request))


def _form(
    request: HttpRequest, media_type: str
) -> tuple[QueryDict, MultiValueDict[str, UploadedFile[bytes]]]:
    """Django parses the forms of POST only; those of PATCH and PUT are as much of a form."""
    if request.method == "POST":
        return request.POST, request.FILES
    if media_type == URLENCODED:
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


def _files(files: MultiValueDict[str, UploadedFile[bytes]]) -> list[SentFile]:
    return [_file(field, each) for field, several in files.lists() for each in several]


def _file(field: str, upload: UploadedFile[bytes]) -> SentFile:
    digest = hashlib.sha256()
    for chunk in upload.chunks():
        digest.update(chunk)
    upload.seek(0)
    parameters = [f"{name}={value!r}" for name, value in (upload.content_type_extra or {}).items()]
    kind = "; ".join([upload.content_type or "", *parameters])
    return SentFile(field, upload.name or "", upload.size or 0, digest.hexdigest(), kind)


def _content_length(request: HttpRequest) -> int | None:
    """As the client says; of a chunked body its size, where the server has it whole (ASGI)."""
    text = str(request.META.get("CONTENT_LENGTH") or "")
    if text.isdecimal():
        return int(text)
    return _spooled(vars(request).get("_stream"))


def _spooled(stream: Any) -> int | None:
    """The size of a body that is in a file; nothing is loaded, and the position stays."""
    if not isinstance(stream, SpooledTemporaryFile) or stream.closed:
        return None
    position = stream.tell()
    size = stream.seek(0, SEEK_END)
    stream.seek(position)
    return size
