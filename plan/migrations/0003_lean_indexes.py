import django.db.models.deletion
from django.db import migrations, models

from workspaces.migrating import dropped, made

STEP, MESSAGE = '"capstan_plan_planstep"', '"capstan_plan_stepmessage"'
COPIED_FROM = "capstan_plan_planstep_copied_from_id_68e1629e"
PLAN = "capstan_plan_planstep_plan_id_d7854dfc"
MESSAGE_STEP = "capstan_plan_stepmessage_step_id_a18c83ec"


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ('capstan_plan', '0002_board'),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(
                    [
                        *made("step_copied_from", f'{STEP} ("copied_from_id") WHERE "copied_from_id" IS NOT NULL'),
                        *dropped(COPIED_FROM, PLAN, MESSAGE_STEP),
                    ],
                    [
                        *made(MESSAGE_STEP, f'{MESSAGE} ("step_id")'),
                        *made(PLAN, f'{STEP} ("plan_id")'),
                        *made(COPIED_FROM, f'{STEP} ("copied_from_id")'),
                        *dropped("step_copied_from"),
                    ],
                ),
            ],
            state_operations=[
                migrations.AlterField(
                    model_name='planstep',
                    name='copied_from',
                    field=models.ForeignKey(blank=True, db_index=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='capstan_plan.planstep'),
                ),
                migrations.AlterField(
                    model_name='planstep',
                    name='plan',
                    field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='steps', to='capstan_plan.executionplan'),
                ),
                migrations.AlterField(
                    model_name='stepmessage',
                    name='step',
                    field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='messages', to='capstan_plan.planstep'),
                ),
                migrations.AddIndex(
                    model_name='planstep',
                    index=models.Index(condition=models.Q(('copied_from__isnull', False)), fields=['copied_from'], name='step_copied_from'),
                ),
            ],
        ),
    ]
