"""Names from requests: each field present, missing, of a wrong type, colliding, hostile."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from uuid import UUID

import pytest

import lockkit
from lockkit.model.errors import ConfigurationError, InvalidName
from lockkit.model.names import Template
from lockkit.web.name_fields import AnonymousUser, FieldError, lock_name
from lockkit.web.refusal import refusal_of
from lockkit.web.view_lock import ViewLock


class Request:
    """Facts, as an adapter would state them."""

    def __init__(
        self,
        *,
        kwargs: Mapping[str, object] | None = None,
        user: object = None,
        body: bytes = b"",
        content_type: str = "application/json",
        form: Mapping[str, Sequence[str]] | None = None,
        query: Mapping[str, Sequence[str]] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.kwargs = kwargs or {}
        self.user = user
        self._body = body
        self._content_type = content_type
        self._form = form or {}
        self._query = query or {}
        self._headers = headers or {}

    def kwarg(self, key: str) -> object:
        return self.kwargs.get(key)

    def user_pk(self) -> object:
        return self.user

    def content_type(self) -> str:
        return self._content_type

    def body(self) -> bytes:
        return self._body

    def form(self, key: str) -> Sequence[str]:
        return self._form.get(key, [])

    def query(self, key: str) -> Sequence[str]:
        return self._query.get(key, [])

    def header(self, name: str) -> str | None:
        return self._headers.get(name)


def name(template: str, request: Request) -> str:
    return lock_name(Template(template), request)


def of_json(document: object) -> Request:
    return Request(body=json.dumps(document).encode())


@pytest.mark.parametrize(
    ("template", "request_", "expected"),
    [
        ("stock:{sku}", Request(kwargs={"sku": "A1"}), "stock:A1"),
        ("stock:{pk}", Request(kwargs={"pk": 42}), "stock:42"),
        ("stock:{pk}", Request(kwargs={"pk": UUID(int=1)}), f"stock:{UUID(int=1)}"),
        ("{kwargs.user}", Request(kwargs={"user": "ann"}), "ann"),
        ("cart:{user.pk}", Request(user=7), "cart:7"),
        ("{pk:int}:{kwargs.pk}", Request(kwargs={"pk": "01"}), "1:01"),
        ("cart:{user.pk:int}", Request(user="7"), "cart:7"),
        ("o:{json.n:int}", of_json({"n": " 1"}), "o:1"),
        ("o:{form.n:int}", Request(form={"n": ["01"]}), "o:1"),
        ("o:{query.e:lower}", Request(query={"e": ["Ann"]}), "o:ann"),
        (
            "o:{header.X-Order:uuid}",
            Request(headers={"X-Order": "0" * 31 + "1"}),
            f"o:{UUID(int=1)}",
        ),
        ("o:{json.a.b}", of_json({"a": {"b": "x"}}), "o:x"),
        ("o:{json.n}", of_json({"n": 10**30}), f"o:{10**30}"),
        ("f:{form.x}", Request(form={"x": ["1"]}), "f:1"),
        ("q:{query.x}", Request(query={"x": ["1"]}), "q:1"),
        ("h:{header.X-Shop}", Request(headers={"X-Shop": "eu"}), "h:eu"),
        ("h:{header.X_Shop}", Request(headers={"X-Shop": "eu"}), "h:eu"),
        ("{json.a}:{json.b}", of_json({"a": "1:2", "b": "3"}), "1%3A2:3"),
        ("o:{json.a}", Request(body=b"\xef\xbb\xbf" + b'{"a": 1}'), "o:1"),
        ("o:{json.a}", Request(body=b'{"a": 1}', content_type="text/plain"), "o:1"),
        ("o:{json.a}", Request(body=b'{"a": 1}', content_type='a/b; charset="UTF-8"'), "o:1"),
        ("report", Request(), "report"),
    ],
)
def test_a_field_that_is_there(template: str, request_: Request, expected: str) -> None:
    assert name(template, request_) == expected


@pytest.mark.parametrize(
    ("template", "request_", "problem"),
    [
        ("{json.a}", of_json({"b": 1}), "missing"),
        ("{json.a.b}", of_json({"a": 1}), "missing"),
        ("{json.a}", of_json([1]), "missing"),
        ("{json.a}", of_json({"a": None}), "missing"),
        ("{json.a}", of_json({"a": ""}), "missing"),
        ("{form.a}", Request(), "missing"),
        ("{query.a}", Request(query={"a": [""]}), "missing"),
        ("{header.X-A}", Request(), "missing"),
        ("{sku}", Request(kwargs={"sku": ""}), "missing"),
        ("{json.a}", of_json({"a": 1.5}), "a float"),
        ("{json.a}", of_json({"a": True}), "a bool"),
        ("{json.a}", of_json({"a": {"b": 1}}), "a dict"),
        ("{json.a}", of_json({"a": [1]}), "a list"),
        ("{query.a}", Request(query={"a": ["1", "2"]}), "more than once"),
        ("{form.a}", Request(form={"a": ["1", "1"]}), "more than once"),
        ("{json.a}", Request(body=b"{"), "without repeated fields"),
        ("{json.a}", Request(body=b""), "the body is empty"),
        ("{json.a}", Request(body=b'{"a": "1", "a": "2"}'), "without repeated fields"),
        ("{json.a}", Request(body=b'{"a": "1", "b": {"c": 1, "c": 1}}'), "without repeated fields"),
        ("{json.a}", Request(body=b"\xff\xfe{\x00"), "without repeated fields"),
        ("{json.a}", Request(body=b"[" * 200_000), "without repeated fields"),
        ("{json.a}", Request(body=b'{"a": ' + b"9" * 5000 + b"}"), "without repeated fields"),
        ("{json.a}", Request(body=b"a=1", content_type="multipart/form-data; b=c"), "JSON body"),
        ("{json.a}", Request(body=b"{}", content_type="a/json; charset=latin-1"), "UTF-8"),
        ("{json.a}", Request(body=b'{"a": "\\ud800"}'), "surrogate"),
        ("{json.a}", of_json({"a": "x" * 300}), "too long"),
        ("{query.a}", Request(query={"a": ["\x00" * 100]}), "too long"),
    ],
)
def test_a_request_that_does_not_fill_a_field(
    template: str, request_: Request, problem: str
) -> None:
    with pytest.raises(FieldError, match=problem):
        name(template, request_)


@pytest.mark.parametrize("value", ["\uff11", "1_0", "4111x", "1.0"])
def test_a_value_that_is_not_what_the_template_says_is_refused(value: str) -> None:
    for template, request_ in (
        ("{sku:int}", Request(kwargs={"sku": value})),
        ("{form.sku:int}", Request(form={"sku": [value]})),
        ("{json.sku:int}", of_json({"sku": value})),
        ("{sku:uuid}", Request(kwargs={"sku": value})),
    ):
        with pytest.raises(FieldError, match=r"sku\} is not a") as caught:
            name(template, request_)
        refusal = refusal_of(caught.value)
        assert (refusal.status, refusal.code) == (400, "lock-name-not-found")
        assert value not in refusal.detail


def test_nobody_s_primary_key_is_not_none() -> None:
    with pytest.raises(AnonymousUser):
        name("cart:{user.pk}", Request())


@pytest.mark.parametrize("value", [None, 1.5, True, object()])
def test_what_the_project_itself_supplies_wrongly_is_no_fault_of_the_client(value: object) -> None:
    with pytest.raises(InvalidName) as caught:
        name("stock:{sku}", Request(kwargs={"sku": value}))
    assert not isinstance(caught.value, FieldError)


@pytest.mark.parametrize(
    "hostile", ["a:b", "a%3Ab", "\r\nX: 1", "\x1b[2J", "{sku}", "*", "../", "é"]
)
def test_hostile_values_make_names_of_their_own(hostile: str) -> None:
    """In a view and in a task alike, and no two of them one name."""
    in_view = name("stock:{query.sku}", Request(query={"sku": [hostile]}))
    assert in_view == lockkit.name("stock:{sku}", sku=hostile)
    assert in_view.count(":") == 1
    assert in_view.isprintable()


def test_two_values_never_make_one_name() -> None:
    tried = ["a", "a:", "a%3A", "a%253A", "A", "a ", "é", "e\u0301", "\u202e", "%"]
    made = {name("s:{query.x}", Request(query={"x": [value]})) for value in tried}
    assert len(made) == len(tried)


@pytest.mark.parametrize(
    "template",
    ["{", "a}", "{}", "{sku!r}", "{json}:{nope.x}", "{user.name}", "{form.a.b}", "", "\n",
     "{a}-{b}"],
)  # fmt: skip
def test_a_wrong_template_is_found_at_import(template: str) -> None:
    with pytest.raises(ConfigurationError):
        ViewLock(template)


def test_a_source_without_its_field_is_guessed() -> None:
    with pytest.raises(InvalidName, match=r"no 'user'; did you mean \{user.pk\}\?"):
        lock_name(Template("cart:{user}"), Request())


def test_a_name_by_callable() -> None:
    view_lock = ViewLock(lambda request, sku: f"stock:{sku}")
    assert view_lock.names_for(Request(), "the request", sku="A1") == ["stock:A1"]
    with pytest.raises(FieldError):
        view_lock.names_for(Request(), "the request", sku="x" * 300)
    with pytest.raises(ConfigurationError, match="must return a name, not int"):
        ViewLock(lambda: 1).names_for(Request())  # type: ignore[arg-type, return-value]


def test_errors_show_nothing_of_what_was_sent() -> None:
    with pytest.raises(FieldError) as caught:
        name("{json.card}", of_json({"card": "4111-1111" + "x" * 300}))
    assert "4111" not in str(caught.value)
