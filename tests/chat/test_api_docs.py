"""The API's schema and its page: for those who are signed in, and from this server alone (design § 8)."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from django.core.management import call_command
from django.test import Client

from chat.pages import POLICY
from tests.streaming.talk import session_of
from tests.support.processes import Processes
from tests.support.runs import make_user

BUNDLE = "drf_spectacular_sidecar/swagger-ui-dist/swagger-ui-bundle"


def assets(page: str) -> list[str]:
    """What a page loads."""
    return re.findall(r'<(?:script|link)[^>]* (?:src|href)="([^"]+)"', page)


@pytest.mark.django_db
def test_who_is_not_signed_in_reads_neither() -> None:
    asked_to = Client().get("/api/docs/")
    assert (asked_to.status_code, asked_to["Location"]) == (302, "/login/?next=/api/docs/")
    for kind in ("application/vnd.oai.openapi", "application/json", "*/*"):
        refused = Client().get("/api/schema/", headers={"Accept": kind})
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "not_authenticated")


@pytest.mark.django_db
def test_the_page_names_the_schema_and_loads_nothing_of_other_hosts() -> None:
    client = Client()
    client.force_login(make_user())
    page = client.get("/api/docs/")
    assert page["Content-Security-Policy"] == POLICY
    text = page.content.decode()
    assert 'data-schema="/api/schema/?format=json"' in text
    assert any(BUNDLE in asset for asset in assets(text))
    assert all(asset.startswith("/static/") for asset in assets(text))
    assert not re.search(r"<style|<script>| style=| on\w+=", text)
    schema = client.get("/api/schema/?format=json")
    assert schema.json()["openapi"].startswith("3.")


def test_the_schema_is_made_without_a_warning_and_its_lists_are_named_so(tmp_path: Path) -> None:
    call_command("spectacular", file=str(tmp_path / "schema.yml"), fail_on_warn=True)
    named = set(re.findall(r"operationId: (\w+)", (tmp_path / "schema.yml").read_text()))
    assert {f"{kind}_list" for kind in ("approvals", "plans", "tool_executions", "interactions", "tools")} <= named
    assert {"approvals_retrieve", "plans_retrieve", "tool_executions_retrieve"} <= named


def test_a_production_server_serves_its_files_itself(processes: Processes, openai_loopback, tmp_path: Path) -> None:
    model = openai_loopback(models=("loopback",)).environment()
    production = {**model, "DEBUG": "false", "CAPSTAN_STATE_DIR": str(tmp_path)}
    unused = ("-i", "admin", "-i", "rest_framework", "-i", "redoc")
    gathered = processes.manage("collectstatic", "--noinput", *unused, environment=production)
    assert gathered.wait(60) == 0, gathered.output
    _, base = processes.web(environment=production)
    cookies = {"sessionid": session_of(make_user())}
    with httpx.Client(base_url=base, cookies=cookies) as http:
        page = http.get("/api/docs/")
        assert page.status_code == 200
        found = assets(page.text)
        assert any(re.search(BUNDLE + r"\.[0-9a-f]{12}\.js$", asset) for asset in found)
        for asset in found:
            served = http.get(asset)
            assert served.status_code == 200, asset
            assert "immutable" in served.headers["Cache-Control"], asset
