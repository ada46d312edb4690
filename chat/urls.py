"""The pages' addresses; the API's are in its own module."""

from __future__ import annotations

from django.urls import path, re_path

from chat import pages

urlpatterns = [
    path("login/", pages.SignIn.as_view(), name="login"),
    path("logout/", pages.sign_out, name="logout"),
    path("", pages.home, name="home"),
    path("c/<uuid:conversation_id>/", pages.conversation, name="conversation"),
    path("plans/<int:plan_id>/", pages.plan, name="plan"),
    path("approvals/<int:approval_id>/", pages.approval, name="approval"),
    re_path(
        r"^calls/(?P<kind>turn|step):(?P<owner_id>\d{1,18})/(?P<round_number>\d{1,9})/(?P<position>\d{1,4})/$",
        pages.tool_detail,
        name="tool-detail",
    ),
]
