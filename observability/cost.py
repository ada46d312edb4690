"""What a call cost, in USD. An unknown model has an unknown price, never zero."""

from __future__ import annotations

import importlib.metadata
from decimal import Decimal
from functools import cache

from django.conf import settings


@cache
def _source() -> str:
    return f"genai-prices {importlib.metadata.version('genai-prices')}"


def estimate_cost(
    *,
    provider: str,
    model: str,
    input_tokens: int | None,
    output_tokens: int | None,
    cache_read_tokens: int | None = None,
    cache_write_tokens: int | None = None,
) -> tuple[Decimal | None, str]:
    """The price of one call and where it comes from.

    Args:
        provider, model: as the adapter names them.
        input_tokens: the whole prompt, cached parts included.

    Returns:
        USD and the table's name and version; (None, "") where tokens or price are unknown. A model in the setting
        `CAPSTAN_PRICES` (`{model: {"input": usd, "output": usd}}` per million tokens) overrides the table.
    """
    if input_tokens is None or output_tokens is None:
        return None, ""
    own = getattr(settings, "CAPSTAN_PRICES", {}).get(model)
    if own is not None:
        million = Decimal(1_000_000)
        usd = (
            Decimal(str(own["input"])) * input_tokens / million + Decimal(str(own["output"])) * output_tokens / million
        )
        return usd, "settings"
    from genai_prices import Usage, calc_price  # pydantic models: only where a price is asked for

    usage = Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cache_read_tokens=cache_read_tokens or None,
        cache_write_tokens=cache_write_tokens or None,
    )
    try:
        price = calc_price(usage, model_ref=model, provider_id=provider)
    except LookupError:
        return None, ""
    return price.total_price, _source()
