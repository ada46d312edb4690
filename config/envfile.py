"""`python -m config.envfile`: the first `.env`, made from `.env.example` with a generated SECRET_KEY."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
EMPTY_KEY = "SECRET_KEY=\n"


def write_first(*, example: Path, target: Path) -> bool:
    """Write `target`, readable by its owner alone, unless it exists.

    Args:
        example: the file to copy; its empty SECRET_KEY gets 50 random characters.

    Returns:
        Whether it was written.
    """
    if target.exists():
        return False
    text = example.read_text()
    if text.count(EMPTY_KEY) != 1:
        raise ValueError(f"{example} must hold one line {EMPTY_KEY.strip()!r}")
    draft = target.with_name(f"{target.name}.{os.getpid()}")  # a reader never sees half a file
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text.replace(EMPTY_KEY, f"SECRET_KEY={secrets.token_urlsafe(38)}\n"))
    draft.rename(target)
    return True


if __name__ == "__main__" and write_first(example=BASE_DIR / ".env.example", target=BASE_DIR / ".env"):
    sys.stdout.write("Wrote .env (mode 0600) with a generated SECRET_KEY; LLM_PROVIDER=demo until you set another.\n")
