"""A Django request at its view, for ``lockkit.orders.gate``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from asgiref.sync import async_to_sync, sync_to_async
from django.conf import settings
from django.contrib.auth import REDIRECT_FIELD_NAME
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.http.request import HttpHeaders
from django.middleware.csrf import get_token
from django.shortcuts import resolve_url
from django.urls import NoReverseMatch

from lockkit.model.errors import ConfigurationError
from lockkit.orders import (
    Order,
    OrderResponse,
    Orders,
    Proceed,
    Refusal,
    Snapshot,
    adrive,
    gate,
    read_order_settings,
    refusals,
    visit,
)
from lockkit.orders.forgery import without_tokens
from lockkit.orders.forms import FormIds
from lockkit.orders.gate import ThreadRunner
from lockkit.orders.login import has_field, leads_to
from lockkit.orders.redis_records import RedisOrderRecords
from lockkit.orders.settings import SOURCE
from lockkit.orders.visit import ViewOptions, options_in
from lockkit.web.route_checks import wrappers
from lockkit_django import signals
from lockkit_django.conf import kept
from lockkit_django.leases.client import alocks, give_back_from_loop, locks
from lockkit_django.leases.transactions import ORDER, note_what_is_final
from lockkit_django.orders.authorize import passes, told_to_mixins, told_to_tests, unknown_check
from lockkit_django.orders.commit_in import OwnTransaction
from lockkit_django.orders.forgery import tokens_in
from lockkit_django.orders.headers import set_headers, set_later
from lockkit_django.orders.open_order import ClaimedOrder, OpenOrder
from lockkit_django.orders.request import (
    as_sender,
    guest_of,
    is_drf,
    order_request,
    session_of,
    user_of,
)
from lockkit_django.orders.table import OrderTable
from lockkit_django.orders.transaction import SharedTransaction
from lockkit_django.web.refusals import in_language, response_of
from lockkit_django.web.view_functions import OPEN_ORDER, class_of, places_of

if TYPE_CHECKING:
    from django.dispatch import Signal

    from lockkit.orders.flow import Flow
    from lockkit.orders.gate import Runner

R = TypeVar("R")

REFUSAL = "_lockkit_reject"
"""Attribute of a response: the refusal that it shows."""


class _LoopRunner:
    """For an event loop, which waits; queries run in the thread of the request."""

    async def do(self, function: Callable[..., R], *args: object) -> R:
        return await in_thread(function, *args)

    async def ask(self, flow: Flow[R], visit: visit.Visit) -> R:
        client = alocks[visit.orders.settings.alias]
        if visit.orders.claims:
            records: Any = RedisOrderRecords(client)
        else:
            records = SimpleNamespace(find=partial(in_thread, visit.records.find))
        return await adrive(flow, records, client, partial(in_thread, visit.recover))

    give_back = staticmethod(give_back_from_loop)


THREAD = ThreadRunner(locks.__getitem__)
LOOP = _LoopRunner()


class Visit(visit.Visit):
    """``view``: what the URL leads to, or what is below ``@idempotent``. ``next_is_view``: Django
    calls the view next, in the transactions of ATOMIC_REQUESTS. ``by_drf``: DRF authenticates."""

    thread, loop = THREAD, LOOP
    to_sync = staticmethod(async_to_sync)
    begins = staticmethod(note_what_is_final)

    def __init__(
        self,
        request: HttpRequest,
        view: Any,
        options: ViewOptions,
        *,
        next_is_view: bool = False,
        by_drf: bool = False,
    ) -> None:
        super().__init__(order_rules(), request, options)
        self.view, self.next_is_view = view, next_is_view
        self.by_drf = by_drf or is_drf(request.resolver_match.func)  # type: ignore[union-attr]
        self.sender: dict[str, Any] = {}  #: the user whom DRF has authenticated: see ``as_sender``
        rules = self.orders.settings
        if self.orders.claims:
            self.records: Any = RedisOrderRecords(locks[rules.alias])
        else:
            self.records = OrderTable(options.using or rules.using)

    def header(self, name: str) -> str | None:
        """Like ``request.headers.get``, but without looking through all headers first."""
        value: str | None = self.request.META.get(HttpHeaders.to_wsgi_name(name))
        return value

    read = order_request

    def known(self) -> visit.Known:
        request = self.request
        return user_of(request, by_drf=self.by_drf), session_of(request), guest_of(request)

    def open(self, decision: Proceed) -> OpenOrder:
        if self.orders.claims:
            return ClaimedOrder(self, decision)
        kind = SharedTransaction if self.options.atomic else OwnTransaction
        return kind(self, decision)

    def attach(self, opened: gate.OpenOrder) -> None:
        before = ORDER.get()
        opened.outer = None if getattr(before, "ended", True) else before
        ORDER.set(opened)
        setattr(self.request, OPEN_ORDER, opened)
        vars(self.request)["order"] = opened

    def detach(self, opened: gate.OpenOrder) -> None:
        ORDER.set(opened.outer)
        vars(self.request).pop(OPEN_ORDER, None)

    def send(self, signal: str, order: Order) -> None:
        found: Signal = getattr(signals, signal)
        with as_sender(self):
            found.send_robust(sender=self.view, request=self.request, order_id=order.order_id)

    def recover(self, order: Order) -> OrderResponse | None:
        with as_sender(self):
            return super().recover(order)

    def may_see(self, hook: Callable[..., Any]) -> bool:
        with as_sender(self):
            return super().may_see(hook)

    def refuse(self, refusal: Refusal) -> HttpResponse:
        """``application/problem+json``, never cached. The middleware may make a page of it."""
        said = in_language(refusal)
        response = response_of(said)
        setattr(response, REFUSAL, said)
        return response

    def respond(self, snapshot: Snapshot) -> HttpResponse:
        response = HttpResponse(snapshot.body, status=snapshot.status)
        del response.headers["Content-Type"]  # Django's default; the stored one, if any, follows
        set_headers(response, snapshot.headers)
        return response

    def new_token(self) -> str:
        return get_token(self.request)

    def order_response(self, response: HttpResponseBase) -> OrderResponse:
        """A rendered response as it may be stored: without CSRF tokens; a stream has no body. One
        that is too long to be stored is not searched for them."""
        body = None if response.streaming else bytes(getattr(response, "content", b""))
        headers = [*response.items(), *set_later(response)]
        answered = OrderResponse(int(response.status_code), headers, body)
        secret = self.request.META.get("CSRF_COOKIE")
        if not (secret and body) or len(body) > self.orders.settings.max_response:
            return answered
        return without_tokens(answered, tokens_in(secret, body))

    def asks_to_log_in(self, response: HttpResponseBase) -> bool:
        """Whether it redirects to a login page, as Django's decorators and mixins do."""
        if response.status_code // 100 != HTTPStatus.FOUND // 100:  # first: headers take long
            return False
        request = self.request
        named = self._told_to_checks("login_url")
        pages = [url for page in (*named, settings.LOGIN_URL) for url in _pages_at(page)]
        location = response.headers.get("Location")
        return leads_to(location, pages, _host(request), request.get_full_path())

    def leads_back(self, response: HttpResponseBase) -> bool:
        names = self._told_to_checks("redirect_field_name", REDIRECT_FIELD_NAME)
        return has_field(response.headers["Location"], {*names, REDIRECT_FIELD_NAME})

    def _told_to_checks(self, name: str, default: str | None = None) -> set[str | None]:
        """This option of Django's decorators and mixins around the view."""
        view = getattr(self.request.resolver_match, "func", None)
        places = places_of(view, self.request.method)
        layers = [layer for place in places for layer in wrappers(place)]
        told = {getattr(each, name, default) for each in layers}
        return told | {*told_to_tests(name, layers)} | told_to_mixins(name, self.request, view)

    def recovered(self, answer: Any) -> OrderResponse:
        if not isinstance(answer, HttpResponseBase):
            raise ConfigurationError(
                f"{self.orders.settings.recover} must return a response or None, "
                f"not {type(answer).__name__}"
            )
        render = getattr(answer, "render", None)
        if callable(render):
            render()
        if not answer.streaming:
            return self.order_response(answer)
        whole = HttpResponse(b"".join(answer), status=answer.status_code, headers=answer.headers)
        answer.close()
        return self.order_response(whole)

    def unknown_check(self) -> str | None:
        below = self.view if self.options.inside else None
        return unknown_check(self.request.resolver_match.func, self.request.method, below)

    def if_checks_pass(self, give: Callable[[], Any]) -> Any:
        if self.options.inside and class_of(self.view) is None:
            return give()
        return give() if passes(self, self.view) else self.refuse(refusals.NOT_ALLOWED)


def _pages_at(page: Any) -> list[str]:
    """The URL of this page; none if it names a route that does not exist."""
    try:
        return [resolve_url(page)] if page else []
    except NoReverseMatch:
        return []


def _host(request: HttpRequest) -> str:
    try:
        return request.get_host()
    except DisallowedHost:
        return ""


def options_of(callback: Callable[..., Any], method: str | None = None) -> ViewOptions:
    """The options of a view: on the callback, its class, or what answers this HTTP method."""
    return options_in(places_of(callback, method))


def open_order(request: HttpRequest) -> OpenOrder | None:
    """The order that this request has opened, until its transaction and its lock are gone."""
    return getattr(request, OPEN_ORDER, None)


async def entered(visit: Visit, runner: Runner, *, begin: bool) -> Any:
    """The answer to the request; None if the view is to be called. If the request is an order, the
    order is open then. ``begin=False``: BEGIN is left to the view's own lock."""
    opened = await gate.enter(visit, runner)
    if not isinstance(opened, OpenOrder):
        return opened
    return await gate.begin(opened, runner) if begin else None


async def in_thread(function: Callable[..., R], *args: object, **kwargs: object) -> R:
    """Call the function on the thread that has this request's database connections."""
    return await sync_to_async(function, thread_sensitive=True)(*args, **kwargs)


@kept
def order_rules() -> Orders:
    """The engine for LOCKKIT_ORDERS. Raises ConfigurationError if the setting is wrong."""
    return Orders(read_order_settings(getattr(settings, SOURCE, None)), form_ids)


form_ids = FormIds(lambda: [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS])
