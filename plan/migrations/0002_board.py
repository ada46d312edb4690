from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("capstan_plan", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="executionplan",
            name="board",
            field=models.JSONField(blank=True, db_default={}, default=dict),  # the version before inserts without it
        ),
    ]
