"""What can go wrong between us and a model. Vendors' exceptions end in the adapters and become one of these."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from workspaces.errors import CapstanError

if TYPE_CHECKING:
    from llm.types import LLMResponse


class LLMError(CapstanError):
    """A model call failed.

    Attributes:
        retry_after_s: how long the provider asks us to wait, seconds; None when it did not say.
        final: the provider says that trying again is of no use, whatever the class says.
        partial: what had arrived before the failure, with its usage; None when nothing had.
    """

    code: ClassVar[str] = "llm.error"
    retry_after_s: float | None = None
    final: bool = False
    partial: LLMResponse | None = None


class RateLimitError(LLMError):
    """The provider asks us to wait (HTTP 429)."""

    code = "llm.rate_limited"
    retryable = True

    def __init__(self, *, retry_after_s: float | None = None, **details: object) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(retry_after_s=retry_after_s, **details)


class LLMOverloaded(LLMError):
    """The provider is overloaded or failing (5xx)."""

    code = "llm.overloaded"
    retryable = True


class LLMTimeout(LLMError):
    """No answer within the deadline."""

    code = "llm.timeout"
    retryable = True


class LLMConnectionError(LLMError):
    """The provider could not be reached."""

    code = "llm.connection"
    retryable = True


class LLMAuthenticationError(LLMError):
    """The key is missing or wrong."""

    code = "llm.authentication"


class LLMPermissionError(LLMError):
    """The key may not use this model."""

    code = "llm.permission"


class QuotaExhausted(LLMError):
    """The account has no credit left; waiting does not help."""

    code = "llm.quota_exhausted"


class LLMBadRequest(LLMError):
    """The provider refused the request as malformed."""

    code = "llm.bad_request"


class ContextTooLong(LLMBadRequest):
    """The request does not fit the model's window."""

    code = "llm.context_too_long"


class RequestTooLarge(ContextTooLong):
    """The request is larger than the provider takes (413)."""

    code = "llm.request_too_large"


class LLMConflict(LLMError):
    """The provider could not serve this request beside another one (409)."""

    code = "llm.conflict"
    retryable = True


class ModelNotFound(LLMError):
    """The provider does not know this model id."""

    code = "llm.model_not_found"


class LLMRefusal(LLMError):
    """The model declined to answer."""

    code = "llm.refusal"


class LLMTruncated(LLMError):
    """The answer was cut by the token limit where a whole one was needed."""

    code = "llm.truncated"


class StructuredError(LLMError):
    """The model's text holds no usable JSON answer."""

    code = "llm.structured"


class NoJSON(StructuredError):
    """There is no JSON in the model's text."""

    code = "llm.no_json"


class InvalidJSON(StructuredError):
    """The JSON in the model's text is broken, or says two things at once; `line` and `column` name the place."""

    code = "llm.invalid_json"


class TruncatedJSON(StructuredError, LLMTruncated):
    """The JSON in the model's text stops before its end."""

    code = "llm.truncated_json"


class SchemaMismatch(StructuredError):
    """The JSON answer does not follow its schema; `problems` names the places."""

    code = "llm.schema_mismatch"


class MalformedResponse(LLMError):
    """A 200 that is no answer: HTML, foreign JSON, empty choices."""

    code = "llm.malformed_response"
    retryable = True


class StreamCut(LLMError):
    """The stream ended without its terminal marker."""

    code = "llm.stream_cut"
    retryable = True


class LLMCancelled(LLMError):
    """We cancelled the call; `partial` holds what had arrived, when anything had."""

    code = "llm.cancelled"

    def __init__(self, *, reason: str = "", partial: LLMResponse | None = None) -> None:
        self.reason = reason
        self.partial = partial
        super().__init__(reason=reason)


class EmbeddingMismatch(LLMError):
    """The index was filled by another embedding model; fill it again, or set `EMBEDDINGS_PROVIDER` as it was."""

    code = "llm.embedding_mismatch"
