"""Middleware of a project that is derived from Django's or from ours."""

from __future__ import annotations

from django.middleware.locale import LocaleMiddleware

from lockkit_django.middleware import LockErrors


class OurLocale(LocaleMiddleware):
    pass


class OurErrors(LockErrors):
    pass
