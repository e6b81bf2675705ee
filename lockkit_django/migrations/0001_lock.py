from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies: list[tuple[str, str]] = []

    operations = [
        migrations.CreateModel(
            name="Lock",
            fields=[
                (
                    "id",
                    models.CharField(
                        editable=False, max_length=64, primary_key=True, serialize=False
                    ),
                ),
                ("prefix", models.CharField(editable=False, max_length=64)),
                ("name", models.CharField(editable=False, max_length=255)),
                ("version", models.BigIntegerField(editable=False)),
                ("fence", models.BigIntegerField(editable=False)),
                ("state", models.TextField(editable=False)),
                ("updated", models.BigIntegerField(editable=False)),
            ],
            options={"verbose_name": "lock", "db_table": "lockkit_lock"},
        ),
    ]
