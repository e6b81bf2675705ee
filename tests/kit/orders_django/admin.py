"""The admin site."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from lockkit_django.admin import OrderRecordAdmin
from lockkit_django.models import OrderRecord

site = admin.AdminSite()
site.register(OrderRecord, OrderRecordAdmin)
urlpatterns = [path("admin/", site.urls)]
