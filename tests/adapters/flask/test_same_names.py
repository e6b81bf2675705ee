"""Flask and Django give the same name for the same request."""

from __future__ import annotations

import json
import os
from io import BytesIO
from typing import Any

import pytest
from flask import Flask
from werkzeug.test import EnvironBuilder

from lockkit.model.errors import InvalidName
from lockkit.model.names import Template
from lockkit.web.name_fields import lock_name
from lockkit_flask.web.request import RequestView

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "django_project.settings")

URL_ENCODED = "application/x-www-form-urlencoded"
FORM_DATA = "multipart/form-data; boundary=b"
MULTIPART = b'--b\r\nContent-Disposition: form-data; name="sku"\r\n\r\n\xe9\r\n--b--\r\n'
TEMPLATE_AND_REQUEST = [
    ("stock:{sku}", {}),
    ("cart:{user.pk}", {}),
    ("o:{json.order.id}", {"json": {"order": {"id": "Ä:%\u2028 b"}}}),
    ("o:{json.order.id}", {"json": {"order": {"id": 10**20}}}),
    ("o:{json.order.id}", {"data": b'\xef\xbb\xbf{"order":{"id":"bom"}}'}),
    ("o:{json.order.id}", {"data": b'{"order":{"id":"\\ud800"}}'}),
    ("o:{json.order.id}", {"data": b'{"order":{"id":1}}', "content_type": "text/plain"}),
    ("o:{json.order.id}", {"data": b'{"order":', "content_type": "application/json"}),
    ("o:{json.id}", {"data": {"id": "1"}}),
    ("f:{form.sku}", {"data": {"sku": "a b+c&d=é"}}),
    ("f:{form.sku}", {"data": {"sku": "x", "file": (BytesIO(b"1"), "a.txt")}}),
    ("f:{form.sku}", {"data": {"sku": ["x", "y"]}}),
    ("f:{form.sku}", {"data": b"sku=%ff%00", "content_type": URL_ENCODED}),
    ("f:{form.sku}", {"data": "sku=é".encode(), "content_type": URL_ENCODED}),
    ("f:{form.sku}", {"data": b"sku=\xff", "content_type": URL_ENCODED}),
    ("f:{form.sku}", {"data": b"sku=%C3%A9&x=\xff", "content_type": URL_ENCODED}),
    ("f:{form.sku}", {"data": b"sku=\xc3\xa9&x=\xff", "content_type": URL_ENCODED}),
    ("f:{form.sku}", {"data": b"sku=a&x=\xff", "content_type": URL_ENCODED}),
    ("f:{form.sku}", {"data": b"sku=a", "content_type": f"{URL_ENCODED}; charset=UTF-8"}),
    ("f:{form.sku}", {"data": b"sku=a", "content_type": f"{URL_ENCODED}; charset=utf-16"}),
    ("f:{form.sku}", {"data": MULTIPART, "content_type": f"{FORM_DATA}; charset=latin-1"}),
    ("f:{form.sku}", {"json": {"sku": "x"}}),
    ("f:{form.sku}", {}),
    ("q:{query.sku}", {"query_string": "sku=a%20b%2Bc+d&x=%C3%A9"}),
    ("f:{form.sku:int}", {"data": {"sku": "01"}}),
    ("f:{form.sku:int}", {"data": {"sku": "1_0"}}),
    ("f:{form.sku:lower}", {"data": {"sku": "É"}}),
    ("q:{query.sku}", {"query_string": "sku=%ff"}),
    ("q:{query.sku}", {"query_string": "sku=1;sku=2"}),
    ("q:{query.sku}", {"query_string": "sku=1&sku=2"}),
    ("q:{query.sku}", {"query_string": "sku="}),
    ("q:{query.sku}", {"query_string": "sku=\xff"}),
    ("q:{query.sku}", {"query_string": "sku=\xc3\xa9"}),
    ("q:{query.sku}", {"query_string": "sku=a&x=\xff"}),
    ("q:{query.sku}", {"query_string": "SKU=1"}),
    ("h:{header.X-Sku}", {"headers": {"X-Sku": "a, b"}}),
    ("h:{header.x_sku}", {"headers": {"X-Sku": "caf\u00e9"}}),
    ("h:{header.X-Sku}", {}),
]


@pytest.mark.parametrize(("template", "sent"), TEMPLATE_AND_REQUEST)
def test_same_facts_same_name(template: str, sent: dict[str, Any]) -> None:
    environ = EnvironBuilder(path="/stock/A:1", method="POST", **sent).get_environ()
    body = environ["wsgi.input"].read()
    of_flask = _flask_name(template, {**environ, "wsgi.input": BytesIO(body)})
    of_django = _django_name(template, {**environ, "wsgi.input": BytesIO(body)})
    assert of_flask == of_django


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (b"a;b", '"stock:a;b"'),
        ("é".encode(), '"stock:\\u00e9"'),
        (b"100%", '"stock:100%25"'),
        (b"%C3%A9", '"stock:%25C3%25A9"'),  # the client has escaped it twice
        (b"\xff", "FieldError"),
        (b"%FF", "FieldError"),  # Django shows the view the same text for both
        (b"\xed\xa0\x80", "FieldError"),
        ("\ufffd".encode(), "FieldError"),
    ],
)
def test_same_path_same_name(path: bytes, name: str) -> None:
    """``path``: what the server has unescaped, as WSGI hands it over."""
    environ = EnvironBuilder(path="/stock/x", method="POST").get_environ()
    environ["PATH_INFO"] = "/stock/" + path.decode("latin-1")
    assert _flask_name("stock:{sku}", dict(environ)) == name
    assert _django_name("stock:{sku}", dict(environ)) == name


def _flask_name(template: str, environ: dict[str, Any]) -> str:
    app = Flask("app")
    app.add_url_rule("/stock/<sku>", "stock", lambda sku: "", methods=["POST"])
    with app.request_context(environ) as context:
        return _name(template, RequestView(context.request, lambda: "7"))


def _django_name(template: str, environ: dict[str, Any]) -> str:
    from django.core.handlers.wsgi import WSGIRequest

    from lockkit_django.web.request import RequestView

    request = WSGIRequest(environ)
    sku = request.path_info.removeprefix("/stock/")
    request.user = type("User", (), {"pk": 7, "is_authenticated": True})()
    return _name(template, RequestView(request, {"sku": sku}))


def _name(template: str, facts: Any) -> str:
    """The name, or the kind of error."""
    try:
        return json.dumps(lock_name(Template(template), facts))
    except InvalidName as error:
        return type(error).__name__
