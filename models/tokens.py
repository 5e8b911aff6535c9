"""How many tokens a text is, counted without a tokenizer: an estimate fitted to cl100k in English, Chinese and code."""

from __future__ import annotations

import re
from typing import Any

from adapters.values import Usage

# Each alternative is what one token tends to be: a word, up to three digits, a run of marks, a line break, a character.
_UNITS = re.compile(
    r"(?P<word>[A-Za-z]+)"
    r"|(?P<one>[0-9]{1,3}|[!-/:-@\[-`{-~]+|\n\s*|[ \t]{2,})"
    r"|(?P<han>[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+)"
    r"|(?P<alphabet>[\u00c0-\u058f]+)"
    r"|(?P<astral>[\U00010000-\U0001ffff]+)"
    r"|(?P<other>[^\x00-\x7f\s])"
)
_PER_CHARACTER = {"han": 1.3, "alphabet": 0.5, "astral": 2.3}


def estimate(text: str) -> int:
    total = 0.0
    for unit in _UNITS.finditer(text):
        kind, length = unit.lastgroup, unit.end() - unit.start()
        if kind == "word":
            total += 1 + max(0, length - 8) * 0.25  # long words fall apart
        elif kind in _PER_CHARACTER:
            total += length * _PER_CHARACTER[kind]
        else:
            total += 1
    return round(total * 1.02) or (1 if text else 0)


def usage(given: Usage | None, written: str) -> dict[str, Any]:
    """The model server's own count where it gives one; else ours of what it wrote, marked as an estimate."""
    return {
        "prompt_tokens": given.prompt_tokens if given else None,
        "completion_tokens": given.completion_tokens if given else estimate(written),
        "total_tokens": given.total_tokens if given else None,
        "estimated": given is None,
    }
