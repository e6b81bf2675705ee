"""The Django application: it registers checks and nothing else. No I/O, no thread."""

from __future__ import annotations

from django.apps import AppConfig


class LockkitConfig(AppConfig):
    name = "lockkit_django"
    verbose_name = "Locks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        import lockkit_django.operate.checks
        import lockkit_django.orders.checks
        import lockkit_django.web.checks  # noqa: F401  they register themselves
        from lockkit_django.stores import in_tests

        in_tests.remember()
