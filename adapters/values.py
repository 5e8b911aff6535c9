"""The plain values that adapters take and give."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Messages = list[dict[str, Any]]
"""What a provider is sent: `{"role": …, "content": …}` in order, as the chat-completions API has it."""


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of an answer. Text may be empty where only the model's name or the usage arrived."""

    text: str = ""
    model: str | None = None
    usage: Usage | None = None


class Cancel:
    """How another thread ends a provider's call: `abort()` runs what the call said would end it, at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._end: Callable[[], None] | None = None
        self.aborted = False

    def ends_by(self, end: Callable[[], None] | None) -> None:
        """The running call names what ends it; where the abort came first, it is ended here and now."""
        with self._lock:
            self._end = end
            late = self.aborted and end is not None
        if late and end is not None:
            end()

    def abort(self) -> None:
        with self._lock:
            self.aborted = True
            end = self._end
        if end is not None:
            end()


@dataclass(frozen=True, slots=True)
class Options:
    temperature: float | None = None
    max_tokens: int | None = None
    cancel: Cancel = field(default_factory=Cancel)
