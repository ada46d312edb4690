from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('capstan_chat', '0003_lean_checks'),
    ]

    operations = [
        migrations.RemoveField(
            model_name='idempotencykey',
            name='body',
        ),
    ]
