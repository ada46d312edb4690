import django.db.models.deletion
from django.db import migrations, models

from workspaces.migrating import dropped, made

TURN = "capstan_chat_message_turn_id_a2c3ad81"


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ('capstan_chat', '0001_initial'),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(dropped(TURN), made(TURN, '"capstan_chat_message" ("turn_id")')),
            ],
            state_operations=[
                migrations.AlterField(
                    model_name='message',
                    name='turn',
                    field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='messages', to='capstan_chat.turn'),
                ),
            ],
        ),
    ]
