from time import time

from django.core.management.base import CommandError
from django.db import migrations


def refuse_orders_of_earlier_release(apps, schema_editor):
    """This release cannot find their records, so a repeated order would be made again."""
    records = apps.get_model("lockkit_django", "OrderRecord").objects
    valid = records.using(schema_editor.connection.alias).filter(expires__gt=time() * 1_000_000)
    if count := valid.count():
        raise CommandError(
            f"lockkit_order_record has {count} orders of an earlier release of lockkit whose TTL "
            f"is not over. This release would make them again if their clients repeat them. Take "
            f"no orders until the TTL is over, or accept that: DELETE FROM lockkit_order_record"
        )


class Migration(migrations.Migration):
    """From here on, keys of orders are made in another way. An earlier release that still runs does
    not find the table, and answers 503 instead of making an order a second time."""

    dependencies = [
        ('lockkit_django', '0002_orderrecord'),
    ]

    operations = [
        migrations.RunPython(
            refuse_orders_of_earlier_release,
            migrations.RunPython.noop,
            hints={"model_name": "orderrecord"},
        ),
        migrations.AlterModelTable(
            name='orderrecord',
            table='lockkit_order',
        ),
    ]
