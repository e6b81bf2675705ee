from django.db import migrations


def keep_records_in_transactions(apps, schema_editor):
    """A record must be rolled back with its order, whatever the storage engine that a MySQL or
    MariaDB server takes by default."""
    if schema_editor.connection.vendor != "mysql":
        return
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(
            "SELECT engines.transactions FROM information_schema.tables "
            "JOIN information_schema.engines USING (engine) "
            "WHERE table_schema = DATABASE() AND table_name = 'lockkit_order'"
        )
        has_transactions = cursor.fetchone() == ("YES",)
    if not has_transactions:
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
