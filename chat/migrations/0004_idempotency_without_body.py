from django.db import migrations


class Migration(migrations.Migration):
    """The column stays for the processes of the version before, which still fill it; what they wrote goes in a day."""

    dependencies = [
        ('capstan_chat', '0003_lean_checks'),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RemoveField(
                    model_name='idempotencykey',
                    name='body',
                ),
            ],
        ),
    ]
