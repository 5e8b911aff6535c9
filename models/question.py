"""Question (plain): asked and answered without a chat, for older clients that keep their history themselves."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from adapters.errors import AdapterError
from adapters.values import Messages, Options
from models import setting, tokens
from models.errors import DomainError
from models.prompt import system_prompt


class ModelFailed(DomainError):
    code, status = "LLM_ERROR", 500


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    details: dict[str, Any]


def ask(content: Any, history: Messages, mode: str, options: Options) -> Answer:
    messages = [{"role": "system", "content": system_prompt()}, *history, {"role": "user", "content": content}]
    provider = setting.provider()
    began = time.monotonic()
    try:
        deltas = list(provider.stream(messages, options))
    except AdapterError as error:
        raise ModelFailed(error.message) from error
    text = "".join(delta.text for delta in deltas)
    details = {
        "mode": mode,
        "sources": [],
        "model": next((delta.model for delta in reversed(deltas) if delta.model), provider.model),
        "usage": tokens.usage(next((delta.usage for delta in reversed(deltas) if delta.usage), None), text),
        "latency_ms": round((time.monotonic() - began) * 1000),
    }
    return Answer(text, details)
