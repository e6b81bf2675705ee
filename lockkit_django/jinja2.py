"""The twin of ``{% order_id %}`` for Django's Jinja2 backend: ``{{ order_id_field() }}``.

Add it to that backend in TEMPLATES:
``"OPTIONS": {"extensions": ["lockkit_django.jinja2.OrderForms"]}``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jinja2 import pass_context
from jinja2.ext import Extension

from lockkit_django.forms import order_id_field

if TYPE_CHECKING:
    from django.utils.safestring import SafeString
    from jinja2 import Environment
    from jinja2.runtime import Context


class OrderForms(Extension):
    """Adds ``order_id_field`` to the templates. If a macro calls it, import it ``with context``."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        environment.globals["order_id_field"] = _order_id_field


@pass_context
def _order_id_field(context: Context, field: str | None = None) -> SafeString:
    return order_id_field(context.get("request"), field)
