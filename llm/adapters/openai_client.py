"""The openai SDK's async client as we want it, and its exceptions as ours."""

from __future__ import annotations

import json

import httpx2
import openai

from llm.adapters.tls import shared_tls
from llm.adapters.wire import cause_of, provider_error
from llm.errors import LLMConnectionError, LLMError, LLMTimeout, MalformedResponse
from llm.settings import LLMSettings


def make_client(settings: LLMSettings, *, base_url: str = "https://api.openai.com/v1") -> openai.AsyncOpenAI:
    """A client that retries nothing, follows no redirect and reads nothing from the environment."""
    timeout = httpx2.Timeout(settings.read_timeout_s, connect=settings.connect_timeout_s, pool=settings.timeout_s)
    client = openai.AsyncOpenAI(
        api_key=settings.api_key or "none",  # compatible servers without keys; the SDK insists on one
        base_url=settings.base_url or base_url,
        max_retries=0,
        timeout=timeout,
        http_client=openai.DefaultAsyncHttpx2Client(
            timeout=timeout,
            follow_redirects=False,
            trust_env=False,
            verify=shared_tls(httpx2.create_ssl_context),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100),
        ),
    )
    client.organization = client.project = client.admin_api_key = None
    client._custom_headers = {}  # OPENAI_CUSTOM_HEADERS has no other switch
    return client


def translate(exc: Exception, settings: LLMSettings, *, model: str) -> LLMError:
    """The SDK's exception as one of ours, its cause kept."""
    error = _translate(exc, settings, model)
    error.__cause__ = cause_of(exc, settings.api_key)
    error.__suppress_context__ = True
    return error


def _translate(exc: Exception, settings: LLMSettings, model: str) -> LLMError:
    if isinstance(exc, openai.APITimeoutError | httpx2.TimeoutException):
        return LLMTimeout(model=model)
    if isinstance(exc, openai.APIConnectionError | httpx2.TransportError):
        return LLMConnectionError(model=model, address=settings.base_url)
    if isinstance(exc, openai.APIStatusError):
        body = exc.body if isinstance(exc.body, dict) else {}
        return provider_error(
            status=exc.status_code,
            names=(exc.code, body.get("code"), exc.type, body.get("type")),
            message=str(body.get("message") or exc.message),
            headers=exc.response.headers,
            key=settings.api_key,
            model=model,
            param=exc.param,
        )
    if isinstance(exc, openai.APIResponseValidationError | json.JSONDecodeError | UnicodeDecodeError):
        return MalformedResponse(model=model, error=type(exc).__name__)
    if isinstance(exc, openai.APIError):  # an error chunk inside a stream: no status of its own
        return error_object(exc.body, settings, model=model)
    return LLMError(model=model, error=type(exc).__name__)


def error_object(body: object, settings: LLMSettings, *, model: str) -> LLMError:
    """An `error` object that came with a 200, whole or inside a stream."""
    fields = body if isinstance(body, dict) else {"message": str(body)}
    code = fields.get("code")
    return provider_error(
        status=code if isinstance(code, int) else None,
        names=(code, fields.get("type")),
        message=str(fields.get("message") or ""),
        key=settings.api_key,
        model=model,
    )


SDK_ERRORS = (openai.OpenAIError, httpx2.TransportError, httpx2.StreamError, ValueError)


def timeout(settings: LLMSettings, deadline_s: float, *, stream: bool) -> httpx2.Timeout:
    """A stream may be silent for the read timeout, a whole answer for all of its deadline."""
    read = settings.read_timeout_s if stream else deadline_s
    return httpx2.Timeout(read, connect=settings.connect_timeout_s, pool=deadline_s)
