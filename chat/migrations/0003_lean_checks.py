from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False  # each table is locked for a moment of its own

    dependencies = [
        ('capstan_chat', '0002_lean_indexes'),
    ]

    operations = [
        migrations.AlterField(
            model_name='message',
            name='position',
            field=models.SmallIntegerField(default=0),
        ),
        migrations.AlterField(
            model_name='message',
            name='round',
            field=models.IntegerField(),
        ),
        migrations.AlterField(
            model_name='turn',
            name='attempts',
            field=models.SmallIntegerField(default=0),
        ),
        migrations.AlterField(
            model_name='turn',
            name='dispatches',
            field=models.SmallIntegerField(default=0),
        ),
        migrations.AlterField(
            model_name='turn',
            name='rate_limit_waits',
            field=models.SmallIntegerField(default=0),
        ),
        migrations.AlterField(
            model_name='turn',
            name='recipe_version',
            field=models.IntegerField(blank=True, null=True),
        ),
    ]
