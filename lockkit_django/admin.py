"""The admin page of order records: to look, not to touch."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from lockkit.orders.record import MICROSECONDS
from lockkit_django.models import OrderRecord


@admin.register(OrderRecord)
class OrderRecordAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic in the stubs only
    """Read-only: deleting or changing a record could make its order run twice.

    The stored response is not shown, because it was made for one user only.
    """

    list_display = ("order_id", "request", "state", "status", "made", "ends")
    list_filter = ("state", "status")
    search_fields = ("order_id__exact",)
    ordering = ("-expires",)  # has an index
    show_full_count = False
    fields = ("order_id", "request", "state", "status", "made", "ends", "version", "key")
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> Any:
        """Without the stored responses, which are large."""
        return super().get_queryset(request).defer("headers", "body")

    @admin.display(description="created", ordering="created")
    def made(self, record: OrderRecord) -> datetime | None:
        return _time(record.created)

    @admin.display(description="expires", ordering="expires")
    def ends(self, record: OrderRecord) -> datetime | None:
        return _time(record.expires)

    def _never(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    has_add_permission = has_change_permission = has_delete_permission = _never


def _time(microseconds: int) -> datetime | None:
    """None, which is shown as "-", for a value out of range, which another program has written."""
    try:
        return datetime.fromtimestamp(microseconds / MICROSECONDS, UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return None
