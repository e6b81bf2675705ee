"""The Django application: it registers checks and nothing else. No I/O, no thread."""

from __future__ import annotations

from django.apps import AppConfig


class LockkitConfig(AppConfig):
    name = "lockkit_django"
    verbose_name = "Locks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from lockkit_django.operate import checks
        from lockkit_django.orders import checks as order_checks
        from lockkit_django.orders import routes
        from lockkit_django.stores import in_tests
        from lockkit_django.web import checks as view_checks

        for each in (checks, view_checks, order_checks, routes):
            each.register()
        in_tests.remember()
