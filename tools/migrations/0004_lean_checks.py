from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False  # each table is locked for a moment of its own

    dependencies = [
        ('capstan_tools', '0003_lean_indexes'),
    ]

    operations = [
        migrations.AlterField(
            model_name='toolcallrun',
            name='attempts',
            field=models.SmallIntegerField(default=0),
        ),
        migrations.AlterField(
            model_name='toolcallrun',
            name='dispatches',
            field=models.SmallIntegerField(default=0),
        ),
        migrations.AlterField(
            model_name='toolcallrun',
            name='rate_limit_waits',
            field=models.SmallIntegerField(default=0),
        ),
        migrations.AlterField(
            model_name='toolexecution',
            name='duration_ms',
            field=models.IntegerField(default=0),
        ),
        migrations.AlterField(
            model_name='toolexecution',
            name='position',
            field=models.SmallIntegerField(),
        ),
        migrations.AlterField(
            model_name='toolexecution',
            name='round',
            field=models.IntegerField(),
        ),
        migrations.AlterField(
            model_name='toolexecution',
            name='told_tokens',
            field=models.IntegerField(default=0),
        ),
    ]
