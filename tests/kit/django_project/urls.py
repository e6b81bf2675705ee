"""``/<kind of view>/<sku>``"""

from __future__ import annotations

from django.urls import path

from django_project.views import ASYNC_VIEWS, SYNC_VIEWS

urlpatterns = [
    path(f"{kind}/<str:sku>", view) for kind, view in {**SYNC_VIEWS, **ASYNC_VIEWS}.items()
]
