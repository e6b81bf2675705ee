"""RECOVER: the application says what became of an order whose response is not there."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponseBase
from django.utils.module_loading import import_string

from lockkit.model.errors import ConfigurationError
from lockkit.orders import OrderResponse
from lockkit_django.orders.identity import value_of
from lockkit_django.orders.request import response_facts

__all__ = ["recovered"]


def recovered(path: str, request: HttpRequest, order_id: str) -> OrderResponse | None:
    """Ask ``path(request, order_id)``, a function or a coroutine function.

    Raises ConfigurationError for an answer that is neither a response nor None, and what the
    function raises.
    """
    response = value_of(import_string(path)(request, order_id))
    if response is None:
        return None
    if not isinstance(response, HttpResponseBase):
        raise ConfigurationError(
            f"{path} must return a response or None, not {type(response).__name__}"
        )
    render = getattr(response, "render", None)
    if callable(render):
        render()
    return response_facts(request, response)
