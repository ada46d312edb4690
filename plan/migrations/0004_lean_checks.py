from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False  # each table is locked for a moment of its own

    dependencies = [
        ('capstan_plan', '0003_lean_indexes'),
    ]

    operations = [
        migrations.AlterField(
            model_name='executionplan',
            name='attempts',
            field=models.SmallIntegerField(default=0),
        ),
        migrations.AlterField(
            model_name='executionplan',
            name='budget_tokens',
            field=models.BigIntegerField(blank=True, null=True),
        ),
        migrations.AlterField(
            model_name='executionplan',
            name='dispatches',
            field=models.SmallIntegerField(default=0),
        ),
        migrations.AlterField(
            model_name='executionplan',
            name='rate_limit_waits',
            field=models.SmallIntegerField(default=0),
        ),
        migrations.AlterField(
            model_name='planstep',
            name='attempts',
            field=models.SmallIntegerField(default=0),
        ),
        migrations.AlterField(
            model_name='planstep',
            name='order',
            field=models.IntegerField(),
        ),
        migrations.AlterField(
            model_name='planstep',
            name='outcome_satisfaction',
            field=models.SmallIntegerField(blank=True, null=True),
        ),
        migrations.AlterField(
            model_name='planstep',
            name='recipe_version',
            field=models.IntegerField(blank=True, null=True),
        ),
        migrations.AlterField(
            model_name='stepmessage',
            name='position',
            field=models.SmallIntegerField(default=0),
        ),
        migrations.AlterField(
            model_name='stepmessage',
            name='round',
            field=models.IntegerField(),
        ),
    ]
