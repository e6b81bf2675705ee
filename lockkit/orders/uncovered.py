"""Forms with an order ID whose view is not an order: two clicks would silently be two orders."""

from __future__ import annotations

import re
from itertools import islice
from typing import Any

from lockkit.model.log import log
from lockkit.orders.forms import FormIds
from lockkit.orders.order import MalformedOrderIdError

MOST_LOOKED_AT = 20
"""Each costs a signature, and a client could send a million."""

_LIKE_ONE = re.compile(r"lk1\.[\w.-]{1,200}", re.ASCII)


def tell_uncovered(forms: FormIds, request: str, form: Any, body: bytes | None) -> None:
    """Log an error if the view has parsed a request with an order ID that we have signed.

    request: its label. form: a multi-dictionary, if the view has parsed one. body: if the view
    read it. Reads nothing itself.
    """
    values = [value for _, each in form.lists() for value in each] if form else []
    parsed = "\n".join([(body or b"").decode("utf-8", "replace"), *values])
    some = islice(_LIKE_ONE.finditer(parsed), MOST_LOOKED_AT)
    if any(_is_signed(forms, found[0]) for found in some):
        log.error(
            "%s has run with the order ID of a form, and was not an order: PATHS and METHODS "
            "do not cover it, so two clicks are two orders. Correct LOCKKIT_ORDERS, or put "
            "@idempotent on the view, or @idempotent.exempt if you mean it",
            request,
        )


def _is_signed(forms: FormIds, text: str) -> bool:
    try:
        return forms.read(text) is not None
    except MalformedOrderIdError:
        return False
