"""A model that is never asked, for agents that are looked at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llm.base import ModelPort
from llm.ports import CancelToken
from llm.types import LLMResponse, ModelRequest


class Unasked(ModelPort):
    """Stands where no model is called.

    Args:
        model_id: whose requests are looked at.
    """

    provider = ""

    def __init__(self, model_id: str) -> None:
        self.model_id = model_id

    def call(self, request: ModelRequest, **_options: Any) -> LLMResponse:
        raise AssertionError("a preview asks no model")

    def stream_request(self, request: ModelRequest, *, cancel: CancelToken | None = None) -> Iterator[str]:
        raise AssertionError("a preview asks no model")
