from django.conf import settings
from django.db import migrations, models

from workspaces.migrating import dropped, made, replaced

TABLE = '"capstan_observability_agentinteraction"'
CORRELATION = "capstan_observability_agentinteraction_correlation_id_869c5bbe"
CORRELATION_LIKE = "capstan_observability_ag_correlation_id_869c5bbe_like"


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ('capstan_observability', '0001_initial'),
        ('capstan_workspaces', '0001_initial'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(
                    [
                        *made("interaction_correlation", f'{TABLE} ("correlation_id")'),
                        *dropped(CORRELATION_LIKE, CORRELATION),
                        *replaced("interaction_conversation", f'{TABLE} ("conversation_id") WHERE "conversation_id" IS NOT NULL'),
                        *replaced("interaction_plan", f'{TABLE} ("plan_id") WHERE "plan_id" IS NOT NULL'),
                    ],
                    [
                        *replaced("interaction_plan", f'{TABLE} ("plan_id")'),
                        *replaced("interaction_conversation", f'{TABLE} ("conversation_id")'),
                        *made(CORRELATION, f'{TABLE} ("correlation_id")'),
                        *made(CORRELATION_LIKE, f'{TABLE} ("correlation_id" varchar_pattern_ops)'),
                        *dropped("interaction_correlation"),
                    ],
                ),
            ],
            state_operations=[
                migrations.RemoveIndex(
                    model_name='agentinteraction',
                    name='interaction_conversation',
                ),
                migrations.RemoveIndex(
                    model_name='agentinteraction',
                    name='interaction_plan',
                ),
                migrations.AlterField(
                    model_name='agentinteraction',
                    name='correlation_id',
                    field=models.CharField(max_length=64),
                ),
                migrations.AddIndex(
                    model_name='agentinteraction',
                    index=models.Index(fields=['correlation_id'], name='interaction_correlation'),
                ),
                migrations.AddIndex(
                    model_name='agentinteraction',
                    index=models.Index(condition=models.Q(('conversation_id__isnull', False)), fields=['conversation_id'], name='interaction_conversation'),
                ),
                migrations.AddIndex(
                    model_name='agentinteraction',
                    index=models.Index(condition=models.Q(('plan_id__isnull', False)), fields=['plan_id'], name='interaction_plan'),
                ),
            ],
        ),
    ]
