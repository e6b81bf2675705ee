"""Whose order a request is, by what authenticates: Django, DRF, or the SCOPE of the settings."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponseBase
from django.utils.module_loading import import_string

from lockkit.model.errors import ConfigurationError
from lockkit.orders import Identity

if TYPE_CHECKING:
    from lockkit.orders import OrderSettings

GUEST = "_lockkit_guest"
"""Key of a session: the secret of a guest's forms."""

SIGNED_COOKIES = "django.contrib.sessions.backends.signed_cookies"


class RefusedError(Exception):
    """The view would refuse this request: ``response`` is its answer."""

    def __init__(self, response: HttpResponseBase) -> None:
        super().__init__(response.status_code)
        self.response = response


def identity_for(
    request: HttpRequest, view: Any, settings: OrderSettings, *, checked: bool
) -> Identity:
    """Call it after authentication. DRF authenticates inside its views: here it is done before.

    Raises RefusedError if authentication, or a permission of DRF's class, refuses.
    """
    if checked or not _is_drf(view):
        return identity_of(request, settings)
    with _own_user(request):
        _check_as_drf(request, view)
        return identity_of(request, settings)


def in_signed_cookies(session: type[object]) -> bool:
    """Whether sessions of this class live in their cookies."""
    return any(base.__module__ == SIGNED_COOKIES for base in session.__mro__)


def identity_of(request: HttpRequest, rules: OrderSettings) -> Identity:
    """By what Django knows."""
    return Identity(
        scope=_hook(rules.scope, request),
        user=_user(request),
        authorization=request.headers.get("Authorization"),
        session=_session(request),
        tenant=_hook(rules.tenant, request) or "",
        guest=guest_of(request),
    )


def guest_of(request: HttpRequest) -> str | None:
    """The secret in the session of this request, if a form was shown to it as a guest."""
    session = getattr(request, "session", None)
    found = None if session is None else session.get(GUEST)
    return found if isinstance(found, str) else None


def value_of(answer: object) -> object:
    """What a function of the project's says, or a coroutine function, or anything awaitable."""
    return async_to_sync(_awaited)(answer) if isawaitable(answer) else answer


async def _awaited(answer: Awaitable[object]) -> object:
    return await answer


def _is_drf(view: object) -> bool:
    return hasattr(getattr(view, "cls", None), "initialize_request")


def _check_as_drf(request: HttpRequest, view: Any) -> None:
    """What ``APIView.initial`` does, but for throttling, which counts."""
    match = request.resolver_match
    assert match is not None
    instance = view.cls(**getattr(view, "initkwargs", {}))
    for method, action in (getattr(view, "actions", None) or {}).items():
        setattr(instance, method, getattr(instance, action))
    instance.action_map = getattr(view, "actions", None) or {}
    instance.args, instance.kwargs = match.args, match.kwargs
    drf = instance.request = instance.initialize_request(request, *match.args, **match.kwargs)
    instance.headers = instance.default_response_headers
    instance.format_kwarg = instance.get_format_suffix(**match.kwargs)
    try:
        drf.version, drf.versioning_scheme = instance.determine_version(
            drf, *match.args, **match.kwargs
        )
        instance.perform_authentication(drf)
        instance.check_permissions(drf)
    except Exception as error:  # noqa: BLE001  the view raises again what it does not know
        response = instance.handle_exception(error)
        raise RefusedError(instance.finalize_response(drf, response)) from None


@contextmanager
def _own_user(request: HttpRequest) -> Iterator[None]:
    """Take back what was set: DRF's SessionAuthentication would believe that user in the view."""
    before: dict[str, Any] = {
        key: request.__dict__[key] for key in ("user", "auth") if key in request.__dict__
    }
    try:
        yield
    finally:
        for key in ("user", "auth"):
            request.__dict__.pop(key, None)
        request.__dict__.update(before)


def _hook(path: str | None, request: HttpRequest) -> str | None:
    if path is None:
        return None
    answer = import_string(path)(request)
    if answer is not None and not isinstance(answer, str):
        raise ConfigurationError(f"{path} must return a string or None, not {type(answer)}")
    return answer


def _user(request: HttpRequest) -> str | None:
    """Unique over all user models: 7 of the customers is not 7 of the staff.

    Django Ninja leaves the user that a token stands for in ``request.auth``.
    """
    for user in (getattr(request, "user", None), getattr(request, "auth", None)):
        if user is None or getattr(user, "is_authenticated", False) is not True:
            continue
        if user.pk is not None:
            meta = getattr(user, "_meta", None)
            # Not type(user), which of everybody's is SimpleLazyObject.
            return f"{meta.label if meta else user.__class__.__qualname__}:{user.pk}"
    return None


def _session(request: HttpRequest) -> str | None:
    """The key of a session that the store knows: a made-up cookie is nobody's.

    A session that lives in its cookie has no key that stays the same.
    """
    session = getattr(request, "session", None)
    if session is None or in_signed_cookies(type(session)):
        return None
    session.keys()  # loads it: only then is the key of an unknown one gone
    return session.session_key if not session.is_empty() else None
