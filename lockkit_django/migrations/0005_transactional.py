from django.db import migrations


def keep_records_in_transactions(apps, schema_editor):
    """A record must be rolled back with its order, whatever the storage engine that a MySQL or
    MariaDB server takes by default."""
    if schema_editor.connection.vendor == "mysql":
        schema_editor.execute("ALTER TABLE lockkit_order ENGINE=InnoDB")


class Migration(migrations.Migration):
    dependencies = [
        ("lockkit_django", "0004_no_like_index"),
    ]

    operations = [
        migrations.RunPython(
            keep_records_in_transactions,
            migrations.RunPython.noop,
            atomic=False,
            hints={"model_name": "orderrecord"},
        ),
    ]
