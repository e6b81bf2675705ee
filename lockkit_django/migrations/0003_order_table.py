from django.db import migrations


class Migration(migrations.Migration):
    """The keys of orders are made in another way since: a release that makes the earlier ones
    finds no table, and answers 503 instead of making an order a second time."""

    dependencies = [
        ('lockkit_django', '0002_orderrecord'),
    ]

    operations = [
        migrations.AlterModelTable(
            name='orderrecord',
            table='lockkit_order',
        ),
    ]
