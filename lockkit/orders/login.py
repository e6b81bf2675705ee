"""Redirects to a login page: whether one leads there, and whether it says where to go next."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import parse_qsl, urljoin, urlsplit

_DEFAULT_PORT = re.compile(r":(80|443)\Z")


def leads_to(location: str | None, pages: Iterable[str], host: str, path: str) -> bool:
    """Whether a redirect leads to the host and the path of one of these pages. All of them may be
    relative to the request's own ``host`` and ``path``."""
    try:
        own = _place(location, host, path) if location else None
    except ValueError:  # no URL, as http://[ is none
        return False
    return own is not None and any(own == _place(page, host, path) for page in pages)


def has_field(location: str, names: Iterable[str | None]) -> bool:
    """Whether the query has one of these fields. A name that is empty is that of a check which adds
    no field."""
    fields = dict(parse_qsl(urlsplit(location).query, keep_blank_values=True))
    return any(not name or name in fields for name in names)


def _place(url: str, host: str, path: str) -> tuple[str, str]:
    parts = urlsplit(urljoin(path, url))
    return _DEFAULT_PORT.sub("", (parts.netloc or host).lower()), parts.path or "/"
