import django.db.models.deletion
from django.db import migrations, models

from workspaces.migrating import dropped, made

TABLE = '"capstan_events_event"'
STREAM = "capstan_events_event_stream_id_75588292"
CORRELATION = "capstan_events_event_correlation_id_664527d3"


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ('capstan_events', '0001_initial'),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(
                    dropped(f"{CORRELATION}_like", CORRELATION, STREAM),
                    [
                        *made(STREAM, f'{TABLE} ("stream_id")'),
                        *made(CORRELATION, f'{TABLE} ("correlation_id")'),
                        *made(f"{CORRELATION}_like", f'{TABLE} ("correlation_id" varchar_pattern_ops)'),
                    ],
                ),
            ],
            state_operations=[
                migrations.AlterField(
                    model_name='event',
                    name='correlation_id',
                    field=models.CharField(max_length=64),
                ),
                migrations.AlterField(
                    model_name='event',
                    name='stream',
                    field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='events', to='capstan_events.stream'),
                ),
            ],
        ),
    ]
