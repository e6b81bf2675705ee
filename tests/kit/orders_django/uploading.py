"""Views of uploads: DRF's with parsers of their own, and one that tells where its file is kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from django.core.files.uploadhandler import FileUploadHandler, StopUpload
from django.http import HttpRequest, HttpResponse
from django.urls import path
from rest_framework.decorators import action, api_view, parser_classes
from rest_framework.parsers import DataAndFiles, FileUploadParser, JSONParser, MultiPartParser
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from lockkit_django.orders import IdempotentMixin, idempotent
from orders_django.views import sell


class Once(FileUploadHandler):
    """For one upload, as Django makes it for each."""

    used = False

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        super().new_file(*args, **kwargs)
        if self.used:
            raise StopUpload(connection_reset=True)
        self.used = True

    def receive_data_chunk(self, raw_data: bytes, start: int) -> bytes:
        return raw_data

    def file_complete(self, file_size: int) -> None:
        return None


class JsonPartParser(MultiPartParser):
    """For forms whose field ``order`` is a document."""

    def parse(self, *args: Any, **kwargs: Any) -> Any:
        parsed: Any = super().parse(*args, **kwargs)
        return DataAndFiles(json.loads(parsed.data["order"]), parsed.files)


def _told(request: Any) -> Response:
    """What the parser has made of the body."""
    quantity = request.data["quantity"]
    sell("upload")
    names = [upload.name for upload in request.FILES.values()]
    return Response({"quantity": quantity, "files": names}, status=201)


class Upload(APIView):
    authentication_classes = ()
    parser_classes: ClassVar[Sequence[Any]] = [JsonPartParser]

    def post(self, request: Any) -> Response:
        return _told(request)


class UploadInside(IdempotentMixin, Upload):
    pass


class OnlyJson(Upload):
    parser_classes: ClassVar[Sequence[Any]] = [JSONParser]


class OnlyJsonInside(IdempotentMixin, OnlyJson):
    pass


@api_view(["POST"])
@parser_classes([JsonPartParser])
@idempotent
def below(request: Any) -> Response:
    return _told(request)


class Raw(APIView):
    """Its parser streams a body that is one file."""

    authentication_classes = ()
    parser_classes: ClassVar[Sequence[Any]] = [FileUploadParser]

    def post(self, request: Any) -> Response:
        sell("raw")
        return Response(request.data["file"].size, status=201)

    put = post


class RawInside(IdempotentMixin, Raw):
    pass


class Actions(ViewSet):
    """One of its actions has the name of a method that other classes of Django have."""

    authentication_classes = ()
    ran: ClassVar[list[str]] = []

    def create(self, request: Any) -> Response:
        return Response(status=201)

    @action(detail=False, methods=["post"])
    def setup(self, request: Any) -> Response:  # type: ignore[override]
        self.ran.append("setup")
        return Response(status=201)


class Early(Upload):
    """DRF asks it for its authenticators when Django's ``setup`` has been called."""

    def setup(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        super().setup(request, *args, **kwargs)
        self.shop = "eu"

    def get_authenticators(self) -> list[Any]:
        assert self.request.method == "POST"
        assert self.shop
        return []


def kept(request: HttpRequest) -> HttpResponse:
    """Where Django keeps the file."""
    sell("kept")
    (upload,) = request.FILES.values()
    return HttpResponse(f"{type(upload).__name__} {upload.size}", status=201)


urlpatterns = [
    path("orders/upload", Upload.as_view()),
    path("orders/upload-inside", UploadInside.as_view()),
    path("orders/upload-below", below),
    path("orders/only-json", OnlyJson.as_view()),
    path("orders/only-json-inside", OnlyJsonInside.as_view()),
    path("orders/raw-inside", RawInside.as_view()),
    path("orders/kept", kept),
    path("orders/early", Early.as_view()),
    path("orders/actions", Actions.as_view({"post": "create"})),
]
