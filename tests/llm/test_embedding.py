"""The embedder port and its three adapters."""

from __future__ import annotations

import numpy as np
import pytest

from llm.adapters import build_embedder
from llm.errors import EmbeddingMismatch, LLMBadRequest, LLMConnectionError, MalformedResponse, RateLimitError
from llm.ports import Embedder
from llm.settings import EmbeddingSettings
from llm.testing.http import HTTPLoopback
from tests.llm.samples import sample, serving


def openai(url, **changes):
    model, key = "text-embedding-3-small", "sk-test-1234"
    return build_embedder(
        EmbeddingSettings(provider="openai", model=model, api_key=key, base_url=f"{url}/v1", **changes)
    )


def ollama(url, model="nomic-embed-text", **changes):
    return build_embedder(EmbeddingSettings(provider="ollama", model=model, base_url=url, **changes))


@pytest.fixture(scope="module")
def local():
    return build_embedder(EmbeddingSettings())


def test_the_default_runs_in_this_process(local):
    assert isinstance(local, Embedder)
    passages = local.embed(
        ["Invoices are sent on Mondays.", "The cat sleeps.", "Der Vertrag läuft bis Mai."], "passage"
    )
    assert (passages.shape, passages.dtype, local.dimensions) == ((3, 384), np.float32, 384)
    assert np.allclose(np.linalg.norm(passages, axis=1), 1, atol=1e-5)
    queries = local.embed(["when are bills sent?", "when does the contract end?"], "query")
    assert list((queries @ passages.T).argmax(axis=1)) == [0, 2]


def test_query_and_passage_differ(local):
    assert not np.allclose(local.embed(["x y"], "query"), local.embed(["x y"], "passage"))


def test_nothing_gives_an_empty_matrix_and_an_empty_text_is_named(local):
    assert local.embed([], "passage").shape == (0, 384)
    with pytest.raises(LLMBadRequest) as caught:
        local.embed(["a", "  "], "passage")
    assert caught.value.details["index"] == 1


def test_an_index_of_another_model_is_refused(local):
    local.check_index(model="multilingual-e5-small", dimensions=384)
    for model, dimensions in (("other", 384), ("multilingual-e5-small", 768)):
        with pytest.raises(EmbeddingMismatch, match="EMBEDDINGS_MODEL"):
            local.check_index(model=model, dimensions=dimensions)


def test_the_wire_sample():
    case = sample("openai_chat/embeddings")
    count = len(case["body"]["data"])
    with serving(case) as server:
        vectors = openai(server.url).embed(["a"] * count, "passage")
    assert vectors.shape == (count, case["expect"]["dim"])


def answering(make):
    """A server whose answers `make(body)` gives as (status, object)."""

    async def answer(exchange):
        await exchange.answer_json(*make(exchange.request.body))

    return HTTPLoopback(answer)


def test_texts_go_in_batches_and_come_back_in_order():
    def vectors(body):
        rows = [{"object": "embedding", "index": i, "embedding": [float(t), 1.0]} for i, t in enumerate(body["input"])]
        return 200, {"object": "list", "model": "m", "data": rows[::-1]}

    with answering(vectors) as server:
        found = openai(server.url, batch=4).embed([str(n) for n in range(10)], "passage")
        assert [len(request.body["input"]) for request in server.requests] == [4, 4, 2]
    assert np.allclose(found[:, 0] / found[:, 1], range(10), atol=1e-4)


@pytest.mark.parametrize(
    "data",
    [
        [],
        [{"index": 0, "embedding": [1.0]}],
        [{"index": 0, "embedding": [1.0, 2.0]}, {"index": 1, "embedding": [1.0]}],
        [{"index": 0, "embedding": [0.0, 0.0]}, {"index": 1, "embedding": [1.0, 0.0]}],
        None,
    ],
)
def test_vectors_that_are_not_what_was_asked_for(data):
    with answering(lambda _body: (200, {"data": data})) as server, pytest.raises(MalformedResponse):
        openai(server.url).embed(["a", "b"], "passage")


def test_errors_are_ours():
    with answering(lambda _body: (429, {"error": {"message": "slow"}})) as server, pytest.raises(RateLimitError):
        openai(server.url).embed(["a"], "query")
    with pytest.raises(LLMConnectionError):
        ollama("http://127.0.0.1:9").embed(["a"], "query")


def test_ollama_gets_the_prefixes_its_model_wants_and_never_cuts():
    with answering(lambda body: (200, {"embeddings": [[3.0, 4.0]] * len(body["input"])})) as server:
        llm = ollama(server.url)
        assert np.allclose(llm.embed(["a"], "query"), [[0.6, 0.8]])
        llm.embed(["b"], "passage")
        ollama(server.url, model="bge-m3").embed(["c"], "query")
        bodies = [request.body for request in server.requests]
    assert [body["input"] for body in bodies] == [["search_query: a"], ["search_document: b"], ["c"]]
    assert all(body["truncate"] is False for body in bodies)
