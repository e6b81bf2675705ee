"""A customer's browser: cookies for all machines of the shop, and forms as the page gives them."""

from __future__ import annotations

import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from html.parser import HTMLParser

TIMEOUT = 30


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    replayed: bool
    again: bool  #: the shop asks the client to try again later
    body: bytes


class Browser:
    """Several threads may use it: a double click is one browser."""

    def __init__(self) -> None:
        # A cookie belongs to a host, whatever the port: both machines get it.
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())

    def log_in(self, url: str, user: str) -> None:
        fields = _forms(self._get(f"{url}/"))[0] | {"user": user}
        reply = self.post(f"{url}/login", fields)
        if reply.status != 200:
            raise RuntimeError(f"login: {reply.status}")

    def form(self, url: str, sku: str) -> dict[str, str]:
        """The hidden fields of a product's form: a new order ID with each look at the page."""
        forms = _forms(self._get(f"{url}/"))
        return next(fields for fields in forms if fields.get("sku") == sku)

    def post(self, url: str, fields: Mapping[str, str]) -> Reply:
        request = urllib.request.Request(
            url,
            urllib.parse.urlencode(fields).encode(),
            {"Accept": "application/json, text/html;q=0.1"},
        )
        try:
            with self._opener.open(request, timeout=TIMEOUT) as response:
                return _reply(response.status, response.headers, response.read())
        except urllib.error.HTTPError as error:
            with error:
                return _reply(error.code, error.headers, error.read())

    def _get(self, url: str) -> str:
        with self._opener.open(url, timeout=TIMEOUT) as response:
            return str(response.read().decode())


class _Forms(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "form":
            self.found.append({})
        elif tag == "input" and values.get("type") == "hidden" and self.found:
            self.found[-1][str(values["name"])] = str(values["value"])


def _forms(html: str) -> list[dict[str, str]]:
    parser = _Forms()
    parser.feed(html)
    return parser.found


def _reply(status: int, headers: Message, body: bytes) -> Reply:
    return Reply(
        status, headers.get("Idempotent-Replayed") == "true", "Retry-After" in headers, body
    )
