"""The same request in Django has the same path and the same files, as they were sent."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import global_settings, settings
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import AsyncClient, Client, override_settings
from orders_django import uploading, views

from lockkit.model.errors import ConfigurationError

pytestmark = pytest.mark.django_db(transaction=True)

REPLAYED = "Idempotent-Replayed"
A_1 = {"Idempotency-Key": "A-1", "Authorization": "Token a"}


@pytest.fixture(autouse=True)
def project(fresh_orders: None) -> Iterator[None]:
    with override_settings(ROOT_URLCONF="orders_django.converted"):
        yield


def send(path: str, **more: Any) -> Any:
    return Client(raise_request_exception=False).post(f"/orders/{path}", headers=A_1, **more)


@pytest.mark.parametrize("kind", ["basket", "named"])
def test_url_values_are_compared_as_they_were_sent(kind: str) -> None:
    """Whatever ``str`` says of the objects that a converter makes."""
    assert send(f"{kind}/1").status_code == 201
    assert send(f"{kind}/1")[REPLAYED] == "true"
    assert send(f"{kind}/2").status_code == 422
    assert views.calls == ["basket"]


async def test_url_values_are_compared_as_they_were_sent_under_asgi() -> None:
    client = AsyncClient()
    answers = [await client.post(f"/orders/basket/{n}", headers=A_1) for n in (1, 1, 2, "%FF")]
    assert [answer.status_code for answer in answers] == [201, 201, 422, 422]


@pytest.mark.parametrize(
    ("one", "other"),
    [("quick/", "slow/"), ("basket/%FF", "basket/%FE"), ("basket/1", "basket/01")],
)
def test_paths_that_look_alike_are_not_the_same(one: str, other: str) -> None:
    assert [send(path).status_code for path in (one, one, other)] == [201, 201, 422]


def test_the_prefix_of_the_application_counts() -> None:
    assert send("quick/", SCRIPT_NAME="/shop").status_code == 201
    assert send("quick/", SCRIPT_NAME="/shop")[REPLAYED] == "true"
    assert send("quick/", SCRIPT_NAME="/staff").status_code == 422


def test_an_order_id_is_no_object_that_a_converter_makes() -> None:
    """Each try would have another, or all baskets the same."""
    rules = {"ORDER_ID": ["kwargs:basket"], "PATHS": ["^/orders/"]}
    with (
        override_settings(LOCKKIT_ORDERS=rules),
        pytest.raises(ConfigurationError, match=r"'kwargs:basket'.*Basket"),
    ):
        Client().post("/orders/basket/1", headers=A_1)
    assert views.calls == []


def upload(*files: tuple[str, str]) -> Any:
    """Name and type of each, all of one field and with the same content."""
    sent = [SimpleUploadedFile(name, b"x", content_type=kind) for name, kind in files]
    return send("quick/", data={"f": sent})


PNG, SVG = ("a", "image/png"), ("b", "image/svg+xml")


@pytest.mark.parametrize("other", [(SVG, PNG), (PNG, PNG), (PNG,), (("a", SVG[1]), SVG)], ids=str)
def test_files_of_a_field_are_compared_in_their_order_and_with_their_type(other: Any) -> None:
    assert upload(PNG, SVG).status_code == 201
    assert upload(PNG, SVG)[REPLAYED] == "true"
    assert upload(*other).status_code == 422


def test_fields_of_files_may_come_in_any_order() -> None:
    def both(*names: str) -> Any:
        return send("quick/", data={name: SimpleUploadedFile(name, b"x") for name in names})

    assert both("a", "b").status_code == 201
    assert both("b", "a")[REPLAYED] == "true"


@pytest.mark.parametrize(
    "kind",
    ["application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b"],
)
@pytest.mark.parametrize("read_before", ["", "body", "POST"])
def test_what_came_of_a_client_that_went_away_in_its_body_is_no_order(
    kind: str, read_before: str
) -> None:
    """Whoever reads it first."""
    body = b'--b\r\nContent-Disposition: form-data; name="n"\r\n\r\n12\r\n--b--\r\n'
    reader = "orders_django.hooks.reads_first"
    with override_settings(MIDDLEWARE=[reader, *settings.MIDDLEWARE]):
        answers = [
            Client().generic(
                "POST",
                "/orders/quick/",
                content_type=kind,
                headers={**A_1, "X-Read": read_before},
                CONTENT_LENGTH=str(len(body)),
                **{"wsgi.input": io.BytesIO(sent), "wsgi.input_terminated": True},  # type: ignore[arg-type]
            )
            for sent in (body[:-7], body)
        ]
    assert [answer.status_code for answer in answers] == [400, 201]
    assert len(views.calls) == 1


@pytest.mark.parametrize("kind", ["application/json", "application/x-www-form-urlencoded"])
@pytest.mark.parametrize("read_next", ["", "POST"])
def test_a_body_that_a_hook_has_consumed_is_an_error(kind: str, read_next: str) -> None:
    """Every body would look the same."""
    headers = {**A_1, "X-Read": read_next}
    with (
        override_settings(MIDDLEWARE=["orders_django.hooks.consumes", *settings.MIDDLEWARE]),
        pytest.raises(ConfigurationError, match=r"request\.body"),
    ):
        Client().post("/orders/quick/", "n=12", content_type=kind, headers=headers)
    assert views.calls == []


UPLOADING = {"ROOT_URLCONF": "orders_django.uploading"}
SMALL = {"DATA_UPLOAD_MAX_MEMORY_SIZE": 1000}
FILE = b"x" * 2000


def order_document(content: bytes = b"x") -> dict[str, Any]:
    return {"order": '{"quantity": 12}', "f": SimpleUploadedFile("a", content)}


@pytest.mark.parametrize("kind", ["upload", "upload-inside", "upload-below"])
def test_an_upload_is_parsed_by_the_view_s_own_parser(kind: str) -> None:
    with override_settings(**UPLOADING):
        answers = [send(kind, data=order_document()) for _ in range(2)]
    assert [answer.json() for answer in answers] == [{"quantity": 12, "files": ["a"]}] * 2
    assert [REPLAYED in answer for answer in answers] == [False, True]


@pytest.mark.parametrize("kind", ["upload", "upload-inside", "upload-below"])
def test_its_own_parser_has_upload_handlers_of_its_own(kind: str) -> None:
    handlers = ["orders_django.uploading.Once", *global_settings.FILE_UPLOAD_HANDLERS]
    with override_settings(**UPLOADING, FILE_UPLOAD_HANDLERS=handlers):
        assert send(kind, data=order_document()).json() == {"quantity": 12, "files": ["a"]}


def test_a_view_of_drf_is_set_up_before_it_is_asked() -> None:
    with override_settings(**UPLOADING):
        answers = [send("early", data=order_document()) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 409]  # its setup() may be a check
    assert answers[1].json()["code"] == "order-completed"


def test_no_action_of_a_view_set_is_run_to_ask_it() -> None:
    with override_settings(**UPLOADING):
        assert send("actions", data={"quantity": 12}).status_code == 201
    assert uploading.Actions.ran == []


@pytest.mark.parametrize("kind", ["only-json", "only-json-inside"])
def test_an_upload_that_no_parser_takes_is_refused(kind: str) -> None:
    with override_settings(**UPLOADING):
        assert send(kind, data=order_document()).status_code == 415
    assert views.calls == []


def test_a_hook_may_read_the_body_of_an_upload() -> None:
    rules = {"PATHS": ["^/orders/"], "SCOPE": "orders_django.hooks.signed"}
    with override_settings(LOCKKIT_ORDERS=rules, **UPLOADING):
        answers = [send("kept", data=order_document(), HTTP_X_OWNER=each) for each in "aab"]
    assert [REPLAYED in answer for answer in answers] == [False, True, False]
    assert [answer.status_code for answer in answers] == [201] * 3


@pytest.mark.parametrize(
    ("limits", "kind"),
    [
        ({}, "InMemoryUploadedFile"),
        ({"DATA_UPLOAD_MAX_MEMORY_SIZE": None}, "InMemoryUploadedFile"),
        ({"FILE_UPLOAD_MAX_MEMORY_SIZE": 1000}, "TemporaryUploadedFile"),
        (SMALL, "InMemoryUploadedFile"),
        ({**SMALL, "FILE_UPLOAD_MAX_MEMORY_SIZE": 1000}, "TemporaryUploadedFile"),
    ],
    ids=str,
)
def test_a_file_is_kept_where_the_settings_say(limits: Any, kind: str) -> None:
    """Only fields count against DATA_UPLOAD_MAX_MEMORY_SIZE."""
    with override_settings(**UPLOADING, **limits):
        answers = [send("kept", data=order_document(FILE)) for _ in range(2)]
    assert [answer.content.decode() for answer in answers] == [f"{kind} 2000"] * 2
    assert answers[1][REPLAYED] == "true"


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_body_that_is_no_order_may_be_too_large_for_memory(method: str) -> None:
    """The view streams it."""
    rules = {"PATHS": ["^/orders/"], "MAX_REQUEST": 10_000, "REQUIRED": False}
    headers = {"Content-Disposition": "attachment; filename=a"}
    with override_settings(LOCKKIT_ORDERS=rules, **UPLOADING, **SMALL):
        answer = Client().generic(
            method, "/orders/raw-inside", FILE, "application/octet-stream", headers=headers
        )
    assert (answer.status_code, answer.content) == (201, b"2000")
