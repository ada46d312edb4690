"""Addresses of the API, mounted at /api/."""

from django.urls import path, re_path

from chat import api, api_approvals, api_docs, api_plans, api_runs, api_tools

urlpatterns = [
    path("conversations/", api.Conversations.as_view(), name="api-conversations"),
    path("conversations/<uuid:conversation_id>/", api.ConversationDetail.as_view(), name="api-conversation"),
    path("conversations/<uuid:conversation_id>/messages/", api.Messages.as_view(), name="api-messages"),
    path("conversations/<uuid:conversation_id>/branch/", api.Branch.as_view(), name="api-branch"),
    path("turns/<int:turn_id>/regenerate/", api.TurnRegenerate.as_view(), name="api-turn-regenerate"),
    path("turns/<int:turn_id>/", api.TurnDetail.as_view(), name="api-turn"),
    path("turns/<int:turn_id>/cancel/", api.TurnCancel.as_view(), name="api-turn-cancel"),
    path("plans/", api_runs.Plans.as_view(), name="api-plans"),
    path("plans/<int:plan_id>/", api_runs.PlanDetail.as_view(), name="api-plan"),
    path("plans/<int:plan_id>/cancel/", api_runs.PlanCancel.as_view(), name="api-plan-cancel"),
    path("plans/<int:plan_id>/retry/", api_runs.PlanRetry.as_view(), name="api-plan-retry"),
    path("plans/<int:plan_id>/graph/", api_plans.PlanGraph.as_view(), name="api-plan-graph"),
    path("plans/<int:plan_id>/adapt/", api_plans.PlanAdapt.as_view(), name="api-plan-adapt"),
    path("plans/<int:plan_id>/fork/", api_plans.PlanFork.as_view(), name="api-plan-fork"),
    path("plans/<int:plan_id>/steps/<str:key>/assess/", api_plans.StepAssess.as_view(), name="api-step-assess"),
    path("approvals/", api_approvals.Approvals.as_view(), name="api-approvals"),
    path("approvals/<int:approval_id>/", api_approvals.ApprovalDetail.as_view(), name="api-approval"),
    path("approvals/<int:approval_id>/decide/", api_approvals.ApprovalDecide.as_view(), name="api-approval-decide"),
    path("tools/", api_tools.Tools.as_view(), name="api-tools"),
    path("tools/<str:name>/", api_tools.ToolCall.as_view(), name="api-tool"),
    path("tool-calls/<int:call_id>/", api_tools.ToolCallDetail.as_view(), name="api-tool-call"),
    path("interactions/", api_runs.Interactions.as_view(), name="api-interactions"),
    path("tool-executions/", api_runs.ToolExecutions.as_view(), name="api-tool-executions"),
    path("tool-executions/<int:execution_id>/", api_runs.ToolExecutionDetail.as_view(), name="api-tool-execution"),
    path("schema/", api_docs.Schema.as_view(), name="api-schema"),
    path("docs/", api_docs.documentation, name="api-docs"),
    re_path(r".*", api.Missing.as_view()),
]
