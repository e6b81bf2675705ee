"""The request that docs/orders.md shows: sent twice as it stands, it is one order."""

from __future__ import annotations

import itertools
import re
import shlex
from typing import Any

import pytest
from django.conf import settings
from django.test import Client, override_settings
from django_project.shop.models import Sale
from places import ROOT

PAGE = (ROOT / "docs" / "orders.md").read_text(encoding="utf-8")
LINES = PAGE.replace("\\\n", "").splitlines()
"""A command may go on after a backslash."""

CSRF = "django.middleware.csrf.CsrfViewMiddleware"


def request_of(command: str) -> tuple[str, dict[str, str], str]:
    """Path, headers and body of a curl command."""
    words = shlex.split(command)
    values: dict[str, list[str]] = {"-H": [], "-d": [], "-b": []}
    rest = [w for w in words if w.startswith("http://")]
    for option, value in itertools.pairwise(words):
        if option in values:
            values[option].append(value)
    headers = dict(line.split(": ", 1) for line in values["-H"])
    headers["Cookie"] = "; ".join(values["-b"])
    return "/" + rest[0].split("/", 3)[3], headers, values["-d"][0]


@pytest.mark.django_db(transaction=True)
@override_settings(
    ROOT_URLCONF="orders_django.form_urls",
    LOCKKIT_ORDERS={"ORDER_ID": ["header:Idempotency-Key"], "PATHS": ["^/orders/"]},
)
def test_the_request_of_the_page_sent_twice_is_one_order() -> None:
    (token,) = re.findall(r"^\$ T=(\w+)", PAGE, re.MULTILINE)
    (command,) = [line for line in LINES if line.startswith("$ curl")]
    path, headers, body = request_of(command.replace("$T", token))
    form = "application/x-www-form-urlencoded"
    with override_settings(MIDDLEWARE=[CSRF, *settings.MIDDLEWARE]):
        client = Client(enforce_csrf_checks=True)
        answers: list[Any] = [
            client.post(path, body, content_type=form, headers=headers) for _ in "12"
        ]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert "Idempotent-Replayed" in answers[1]
    assert Sale.objects.count() == 1
