"""The plain values of a turn: what is asked of it, what the model replied, why it failed, how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adapters.values import Usage
from models import tokens

if TYPE_CHECKING:
    from models.message import Message


@dataclass(frozen=True, slots=True)
class Ask:
    """What a client asks of a turn. For a retry the question stands in the chat already, and `query` is empty."""

    request_id: str
    payload_hash: str
    query: str = ""
    mode: str = "hybrid"
    image: str | None = None
    image_type: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    history_limit: int | None = None
    max_history_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model said, whole or up to where it was stopped."""

    text: str
    model: str
    usage: Usage | None
    latency_ms: int
    stopped: bool = False

    def details(self, mode: str) -> dict[str, Any]:
        details: dict[str, Any] = {
            "mode": mode,
            "sources": [],
            "model": self.model,
            "usage": tokens.usage(self.usage, self.text),
            "latency_ms": self.latency_ms,
        }
        return {**details, "stopped": True} if self.stopped else details


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no answer; `kind` is the class of a model server's fault, for the sentence that pages show."""

    code: str
    message: str
    kind: str | None = None

    def as_dict(self) -> dict[str, str]:
        error = {"code": self.code, "message": self.message}
        return {**error, "kind": self.kind} if self.kind else error


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a turn stands or ended, with the rows as they were stored."""

    turn_id: str
    status: str
    user_message: Message | None = None
    assistant_message: Message | None = None
    failure: Failure | None = None
    partial: str | None = None
    recorded: bool = True


INTERRUPTED = Failure("INTERRUPTED", "The program stopped before the answer was complete.")
UNRECORDED = Failure("STORAGE_ERROR", "The database could not be used. The answer is kept until it can.")
STOPPED = Failure("STOPPED", "Stopped before the answer began.")
