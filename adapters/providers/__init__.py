"""Providers answer: `stream(messages, options)` yields the pieces of one answer as they come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from adapters import Registry
from adapters.values import Delta, Messages, Options


class Provider(Protocol):
    name: str
    model: str

    def stream(self, messages: Messages, options: Options) -> Iterator[Delta]: ...

    def models(self) -> list[str]: ...


providers = Registry(
    "provider",
    {
        "builtin": "adapters.providers.builtin:Builtin",
        "openai": "adapters.providers.openai:OpenAI",
    },
)
