"""What answers look like. Descriptions only: serializers.py makes them, and tests hold the two together."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel


class SessionOut(BaseModel):
    id: str
    title: str
    created_at: str
    updated_at: str
    deleted_at: str | None
    metadata: dict[str, Any]


class SessionWithCount(SessionOut):
    message_count: int


class SessionRow(SessionWithCount):
    last_message_preview: str | None


class SessionsPage(BaseModel):
    sessions: list[SessionRow]
    next_cursor: str | None
    has_more: bool


class MessageOut(BaseModel):
    id: str
    session_id: str
    role: Literal["user", "assistant", "system"]
    content: str
    token_count: int | None
    created_at: str
    metadata: dict[str, Any]


class MessagesPage(BaseModel):
    messages: list[MessageOut]
    next_cursor: str | None
    has_more: bool


class Deleted(BaseModel):
    id: str
    deleted: Literal[True]
    hard: bool
    deleted_at: str | None


class TurnError(BaseModel):
    code: str
    message: str
    kind: Literal["connection", "backend", "timeout"] | None = None


class TurnOut(BaseModel):
    turn_id: str
    status: Literal["pending", "completed", "failed"]
    user_message: MessageOut | None
    assistant_message: MessageOut | None
    error: TurnError | None
    partial: str | None = None


class RetryOut(TurnOut):
    """The turn, and at the top the fields of the message as it stands now."""

    id: str
    session_id: str
    role: str
    content: str
    token_count: int | None
    created_at: str
    metadata: dict[str, Any]


class Match(BaseModel):
    message_id: str
    role: str
    snippet: str
    created_at: str


class SearchRow(SessionRow):
    matches: list[Match]


class SearchPage(BaseModel):
    sessions: list[SearchRow]
    next_cursor: str | None
    has_more: bool


class StatelessOut(BaseModel):
    query: str
    response: str
    mode: str
    metadata: dict[str, Any]


class ConversationOut(StatelessOut):
    history: list[dict[str, Any]]


class HealthOut(BaseModel):
    status: Literal["ok"]


class DatabaseOut(BaseModel):
    writable: bool
    sqlite: str


class ProviderOut(BaseModel):
    name: str
    model: str


class IndexOut(BaseModel):
    waiting: int | None


class ReadyOut(BaseModel):
    status: Literal["ready", "unavailable"]
    database: DatabaseOut
    provider: ProviderOut
    index: IndexOut


class ConfigOut(BaseModel):
    """Every variable with its value; secrets are masked."""

    settings: dict[str, Any]
    provider: str
    version: str


class ErrorDetail(BaseModel):
    code: str
    message: str
    extra: dict[str, Any] | None = None


class ErrorOut(BaseModel):
    detail: ErrorDetail
