from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False  # each table is locked for a moment of its own

    dependencies = [
        ('capstan_observability', '0002_lean_indexes'),
    ]

    operations = [
        migrations.AlterField(
            model_name='agentinteraction',
            name='cache_read_tokens',
            field=models.IntegerField(null=True),
        ),
        migrations.AlterField(
            model_name='agentinteraction',
            name='cache_write_tokens',
            field=models.IntegerField(null=True),
        ),
        migrations.AlterField(
            model_name='agentinteraction',
            name='first_token_ms',
            field=models.IntegerField(null=True),
        ),
        migrations.AlterField(
            model_name='agentinteraction',
            name='input_tokens',
            field=models.IntegerField(null=True),
        ),
        migrations.AlterField(
            model_name='agentinteraction',
            name='latency_ms',
            field=models.IntegerField(),
        ),
        migrations.AlterField(
            model_name='agentinteraction',
            name='output_tokens',
            field=models.IntegerField(null=True),
        ),
        migrations.AlterField(
            model_name='agentinteraction',
            name='reasoning_tokens',
            field=models.IntegerField(null=True),
        ),
        migrations.AlterField(
            model_name='agentinteraction',
            name='round',
            field=models.IntegerField(default=0),
        ),
    ]
