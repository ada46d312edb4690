from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('capstan_tools', '0001_initial'),
    ]

    operations = [
        migrations.AddIndex(
            model_name='toolexecution',
            index=models.Index(condition=models.Q(('effect', 'external')), fields=['idempotency_key'], name='ledger_external_key'),
        ),
    ]
