"""No key of ours is on a page, in a script, in a schema or in what a tool server says (issue: MCP both ways)."""

from __future__ import annotations

import re

import httpx
import pytest
from django.conf import settings
from django.test import Client
from rest_framework.authtoken.models import Token

from tests.support.processes import Processes
from tests.tools.test_mcp_server import over_http
from tools.mcp_models import McpServer
from workspaces.models import Membership, User, Workspace

KEYS = {
    "OPENAI_API_KEY": "sk-proof-openai-0123456789",
    "ANTHROPIC_API_KEY": "sk-ant-proof-0123456789",
    "MCP_TOKENS": '{"https://tools.example.com": "mcp-proof-0123456789"}',
    "SECRET_KEY": "proof-secret-key-" + "z" * 40,
}
SECRETS = ("sk-proof-openai", "sk-ant-proof", "mcp-proof-0123456789", "proof-secret-key-")
PAGES = (
    "/",
    "/login/",
    "/admin/",
    "/admin/capstan_tools/mcpserver/",
    "/admin/capstan_tools/mcpserver/add/",
    "/admin/capstan_tools/approval/",
    "/admin/capstan_tools/toolexecution/",
    "/api/schema/",
    "/api/tools/",
    "/api/no-such-thing/",
    "/health/ready",
)


@pytest.fixture
def chief(workspace: Workspace) -> User:
    user = User.objects.create_superuser("chief", password=None)
    Membership.objects.create(user=user, workspace=workspace)
    return user


def test_no_key_leaves_the_server(processes: Processes, chief: User, workspace: Workspace) -> None:
    McpServer.objects.create(workspace=workspace, name="peer", transport="http", url="https://tools.example.com/mcp")
    # Sessions are signed with SECRET_KEY, so this one comes from the process that has it.
    _, base = processes.web(environment=KEYS)
    key = Token.objects.create(user=chief).key
    seen: list[str] = []
    with httpx.Client(base_url=base, timeout=30, follow_redirects=True) as http:
        for path in PAGES:
            answer = http.get(path, headers={"Authorization": f"Token {key}"})
            assert answer.status_code < 500, path
            seen.append(answer.text)
        scripts = {found for text in seen for found in re.findall(r'(?:src|href)="(/static/[^"]+)"', text)}
        seen += [http.get(path).text for path in sorted(scripts)]
    assert scripts
    seen.append(over_http(f"{base}/mcp", key, _everything))
    for text in seen:
        assert not [secret for secret in SECRETS if secret in text]


def test_pages_of_the_admin_hold_no_key(chief: User, workspace: Workspace, settings: object) -> None:
    McpServer.objects.create(workspace=workspace, name="peer", transport="http", url="https://tools.example.com/mcp")
    settings.CAPSTAN_TOOLS = {"mcp_tokens": {"https://tools.example.com": "mcp-proof-0123456789"}}  # type: ignore[attr-defined]
    client = Client()
    client.force_login(chief)
    for path in PAGES:
        if path.startswith("/admin/"):
            page = client.get(path)
            assert page.status_code == 200, path
            assert "mcp-proof-0123456789" not in page.content.decode()
            assert _secret_key() not in page.content.decode()


def _secret_key() -> str:
    return settings.SECRET_KEY


async def _everything(client: object) -> str:
    return str(await client.list_tools())  # type: ignore[attr-defined]
