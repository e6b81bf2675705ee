from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('shop', '0001_initial'),
    ]

    operations = [
        migrations.AddField(
            model_name='product',
            name='fence',
            field=models.BigIntegerField(default=0, editable=False),
        ),
    ]
