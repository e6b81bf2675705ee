"""Tokens against forged requests (CSRF) in stored answers.

A token belongs to one visitor and one session, so a random placeholder is stored in its place. A
client that gets the answer again gets a new token there. The placeholder differs for each
answer, so that nobody can write it into a page beforehand.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from lockkit.orders.record import PLACEHOLDER, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lockkit.orders.record import OrderResponse

OF_CONTENT = ("etag", "content-length")  # wrong once the body is changed


def without_tokens(response: OrderResponse, tokens: Iterable[str]) -> OrderResponse:
    """The response as it may be stored: without the tokens that are in its body."""
    body = response.body or b""
    found = [token.encode() for token in tokens if token and token.encode() in body]
    if not found:
        return response
    placeholder = f"lockkit-{secrets.token_hex(16)}"
    for token in found:
        body = body.replace(token, placeholder.encode())
    headers = [pair for pair in response.headers if pair[0].lower() not in OF_CONTENT]
    return response._replace(headers=[*headers, (PLACEHOLDER, placeholder)], body=body)


def with_token(snapshot: Snapshot, make_token: Callable[[], str]) -> Snapshot:
    """The stored response with a new token. ``make_token`` is called only if it had a token."""
    placeholder = snapshot.header(PLACEHOLDER)
    if placeholder is None:
        return snapshot
    headers = tuple(pair for pair in snapshot.headers if pair[0] != PLACEHOLDER)
    body = snapshot.body.replace(placeholder.encode(), make_token().encode())
    return snapshot._replace(headers=headers, body=body)
