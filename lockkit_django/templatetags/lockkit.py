"""``{% load lockkit %}`` … ``<form method="post">{% csrf_token %}{% order_id %}``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django import template

from lockkit_django.forms import order_id_field

if TYPE_CHECKING:
    from django.template.context import Context
    from django.utils.safestring import SafeString

register = template.Library()


@register.simple_tag(takes_context=True)
def order_id(context: Context, field: str | None = None) -> SafeString:
    """The hidden field of ``lockkit_django.forms.order_id_field``, with a new ID each time."""
    return order_id_field(getattr(context, "request", None) or context.get("request"), field)
