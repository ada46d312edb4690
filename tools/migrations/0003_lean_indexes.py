import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from workspaces.migrating import dropped, made, replaced

TABLE = '"capstan_tools_toolexecution"'
APPROVAL = "capstan_tools_toolexecution_approval_id_48106507"
USER = "capstan_tools_toolexecution_user_id_2723faca"
CORRELATION = "capstan_tools_toolexecution_correlation_id_464a4a8a"


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ('capstan_tools', '0002_external_key'),
        ('capstan_workspaces', '0001_initial'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(
                    [
                        *made("ledger_correlation", f'{TABLE} ("correlation_id")'),
                        *dropped(f"{CORRELATION}_like", CORRELATION),
                        *made("ledger_approval", f'{TABLE} ("approval_id") WHERE "approval_id" IS NOT NULL'),
                        *dropped(APPROVAL, USER),
                        *replaced("ledger_conversation", f'{TABLE} ("conversation_id") WHERE "conversation_id" IS NOT NULL'),
                        *replaced("ledger_plan", f'{TABLE} ("plan_id", "arguments_digest") WHERE "plan_id" IS NOT NULL'),
                    ],
                    [
                        *replaced("ledger_plan", f'{TABLE} ("plan_id", "arguments_digest")'),
                        *replaced("ledger_conversation", f'{TABLE} ("conversation_id")'),
                        *made(USER, f'{TABLE} ("user_id")'),
                        *made(APPROVAL, f'{TABLE} ("approval_id")'),
                        *dropped("ledger_approval"),
                        *made(CORRELATION, f'{TABLE} ("correlation_id")'),
                        *made(f"{CORRELATION}_like", f'{TABLE} ("correlation_id" varchar_pattern_ops)'),
                        *dropped("ledger_correlation"),
                    ],
                ),
            ],
            state_operations=[
                migrations.RemoveIndex(
                    model_name='toolexecution',
                    name='ledger_conversation',
                ),
                migrations.RemoveIndex(
                    model_name='toolexecution',
                    name='ledger_plan',
                ),
                migrations.AlterField(
                    model_name='toolexecution',
                    name='approval',
                    field=models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='capstan_tools.approval'),
                ),
                migrations.AlterField(
                    model_name='toolexecution',
                    name='correlation_id',
                    field=models.CharField(max_length=64),
                ),
                migrations.AlterField(
                    model_name='toolexecution',
                    name='user',
                    field=models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL),
                ),
                migrations.AddIndex(
                    model_name='toolexecution',
                    index=models.Index(fields=['correlation_id'], name='ledger_correlation'),
                ),
                migrations.AddIndex(
                    model_name='toolexecution',
                    index=models.Index(condition=models.Q(('conversation_id__isnull', False)), fields=['conversation_id'], name='ledger_conversation'),
                ),
                migrations.AddIndex(
                    model_name='toolexecution',
                    index=models.Index(condition=models.Q(('plan_id__isnull', False)), fields=['plan_id', 'arguments_digest'], name='ledger_plan'),
                ),
                migrations.AddIndex(
                    model_name='toolexecution',
                    index=models.Index(condition=models.Q(('approval__isnull', False)), fields=['approval'], name='ledger_approval'),
                ),
            ],
        ),
    ]
