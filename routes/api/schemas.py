"""The shapes on the wire. The frozen contract says *session* where the house says *chat*: the word changes here."""

from __future__ import annotations

import re
import uuid
from typing import Annotated, Any, Literal

from flask import current_app
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictFloat,
    StrictInt,
    StrictStr,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from models.base import as_object
from models.chat import Chat, ChatRow
from models.message import Message, MessageRow
from models.names import preview_of
from models.outcome import Ask, Outcome
from models.search import Found
from routes.api.contract import Body, Query, values_in

MODES = ("naive", "local", "global", "hybrid", "mix", "bypass")
_UUID = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE | re.ASCII)


def _limits() -> Any:
    return current_app.config["HOLDFAST"]


def _no_nul(value: Any) -> Any:
    """SQLite ends a text at NUL in half of its functions; nobody types one."""
    if any(isinstance(item, str) and "\x00" in item for item in values_in(value)):
        raise PydanticCustomError("no_nul", "must not contain the character U+0000")
    return value


def _request_id(value: Any) -> str:
    """Kept as it was sent, in capitals too: the turn is known under it, and a client looks for it again."""
    if value is None or value == "":
        raise PydanticCustomError("MISSING_REQUEST_ID", "request_id is missing: a UUID that the client makes.")
    if not isinstance(value, str) or not _UUID.fullmatch(value):
        raise PydanticCustomError("uuid", "must be a UUID")
    return value


def _optional_request_id(value: Any) -> str:
    return str(uuid.uuid4()) if value is None else _request_id(value)


def _query_text(value: Any) -> Any:
    if value is None or (isinstance(value, str) and not value.strip()):
        raise PydanticCustomError("EMPTY_QUERY", "The message is empty.")
    return value


def _query_length(value: str) -> str:
    longest = _limits().max_query_chars
    if len(value) > longest:
        raise PydanticCustomError("too_long", "must have at most {longest} characters", {"longest": longest})
    return value


def _whole(value: Any) -> Any:
    """JSON has one kind of numbers: 7.0 is a whole one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _mode(value: Any) -> Any:
    if isinstance(value, str) and value not in MODES:
        raise PydanticCustomError("INVALID_MODE", "The mode must be one of: {modes}.", {"modes": ", ".join(MODES)})
    return value


def _title(value: str) -> str:
    longest = _limits().session_title_max_len
    if not value.strip():
        raise PydanticCustomError("blank", "must not be blank")
    if len(value) > longest:
        raise PydanticCustomError("too_long", "must have at most {longest} characters", {"longest": longest})
    return value


Text = Annotated[StrictStr, AfterValidator(_no_nul)]
Details = Annotated[dict[str, Any], AfterValidator(_no_nul)]
Title = Annotated[
    Text,
    AfterValidator(_title),
    WithJsonSchema(
        {"type": "string", "minLength": 1, "maxLength": 100, "pattern": r"^[^\u0000]*[^\s\u0000][^\u0000]*$"}
    ),
]
QuestionSchema = {
    "type": "string",
    "minLength": 1,
    "maxLength": 200000,
    "pattern": r"^[^\u0000]*[^\s\u0000][^\u0000]*$",
}
Question = Annotated[Text, BeforeValidator(_query_text), AfterValidator(_query_length), WithJsonSchema(QuestionSchema)]
RequestId = Annotated[str, BeforeValidator(_request_id), WithJsonSchema({"type": "string", "format": "uuid"})]
OptionalRequestId = Annotated[
    str, BeforeValidator(_optional_request_id), WithJsonSchema({"type": ["string", "null"], "format": "uuid"})
]
Mode = Annotated[StrictStr, BeforeValidator(_mode), WithJsonSchema({"type": "string", "enum": list(MODES)})]
Temperature = Annotated[
    StrictFloat | StrictInt, Field(ge=0, le=2), WithJsonSchema({"type": "number", "minimum": 0, "maximum": 2})
]
MaxTokens = Annotated[StrictInt, Field(ge=1, le=1_000_000), BeforeValidator(_whole)]
TopK = Annotated[StrictInt, Field(ge=1, le=1000), BeforeValidator(_whole)]
HistoryLimit = Annotated[StrictInt, Field(ge=0, le=1000), BeforeValidator(_whole)]
HistoryTokens = Annotated[StrictInt, Field(ge=0, le=10_000_000), BeforeValidator(_whole)]
VariantIndex = Annotated[StrictInt, Field(ge=0, le=2**31), BeforeValidator(_whole)]


# Requests


class NewSession(Body):
    title: Title | None = None
    metadata: Details | None = None


class SessionChange(Body):
    title: Title | None = None
    metadata: Details | None = None


class SessionsQuery(Query):
    limit: Annotated[int, Field(ge=1, le=100)] = Field(default_factory=lambda: _limits().sessions_default_limit)
    cursor: str | None = None
    q: Text = ""


class MessagesQuery(Query):
    limit: Annotated[int, Field(ge=1, le=200)] = Field(default_factory=lambda: _limits().messages_default_limit)
    cursor: str | None = None


class SearchQuery(Query):
    q: Text = ""
    limit: Annotated[int, Field(ge=1, le=100)] = Field(default_factory=lambda: _limits().sessions_default_limit)
    cursor: str | None = None


class DeleteQuery(Query):
    hard: bool = False


class AttachQuery(Query):
    after: Annotated[int, Field(ge=0, le=2**53)] | None = None


class Image(BaseModel):
    img_base64: StrictStr | None = None
    img_mime_type: Text | None = None


class TurnRequest(Body):
    request_id: RequestId
    query: Question
    mode: Mode = "hybrid"
    multimodal_content: Image | None = None
    max_tokens: MaxTokens | None = None
    temperature: Temperature | None = None
    history_limit: HistoryLimit | None = None
    max_history_tokens: HistoryTokens | None = None

    def ask(self) -> Ask:
        image = self.multimodal_content or Image()
        return Ask(
            self.request_id,
            self.payload_hash(),
            self.query,
            self.mode,
            image.img_base64,
            image.img_mime_type,
            self.max_tokens,
            self.temperature,
            self.history_limit,
            self.max_history_tokens,
        )


class RetryRequest(Body):
    request_id: Annotated[OptionalRequestId, Field(validate_default=True)] = None  # type: ignore[assignment]
    mode: Mode = "hybrid"
    max_tokens: MaxTokens | None = None
    temperature: Temperature | None = None
    history_limit: HistoryLimit | None = None
    max_history_tokens: HistoryTokens | None = None

    def ask(self, message_id: str) -> Ask:
        return Ask(
            self.request_id,
            self.payload_hash(retried_message_id=message_id),
            mode=self.mode,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            history_limit=self.history_limit,
            max_history_tokens=self.max_history_tokens,
        )


def _only(name: str) -> dict[str, Any]:
    other = "variant_index" if name == "content" else "content"
    return {"required": [name], "properties": {name: {"not": {"type": "null"}}, other: {"type": "null"}}}


class MessageChange(Body):
    """Exactly one of the two: other words for a question, or another version of an answer."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [_only("content"), _only("variant_index")]})

    content: Question | None = None
    variant_index: VariantIndex | None = None


class StatelessRequest(Body):
    query: Question
    mode: Mode = "hybrid"
    top_k: TopK | None = None
    max_tokens: MaxTokens | None = None
    temperature: Temperature | None = None


class HistoryEntry(BaseModel):
    role: Literal["user", "assistant", "system"]
    content: Text
    timestamp: StrictStr | StrictInt | StrictFloat | None = None


class ConversationRequest(StatelessRequest):
    history: list[HistoryEntry] = Field(default_factory=list)


class MultimodalItem(BaseModel):
    """An image as Base64; a table or an equation as text. A path or an address is never opened."""

    type: Literal["image", "table", "equation"]
    img_base64: StrictStr | None = None
    img_mime_type: Text | None = None
    table_data: Text | None = None
    table_caption: Text | None = None
    latex: Text | None = None
    equation_caption: Text | None = None
    text: Text | None = None


class MultimodalRequest(StatelessRequest):
    multimodal_content: list[MultimodalItem] = Field(default_factory=list)


# Answers


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


# From rows to the wire. Plain dictionaries: the shapes above describe them, and tests hold the two together.


def session_out(chat: Chat) -> dict[str, Any]:
    return {
        "id": chat.id,
        "title": chat.title,
        "created_at": chat.created_at,
        "updated_at": chat.updated_at,
        "deleted_at": chat.deleted_at,
        "metadata": chat.details,
    }


def session_row(row: ChatRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "title": row.title,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
        "deleted_at": row.deleted_at,
        "metadata": as_object(row.metadata_json),
        "message_count": row.message_count,
        "last_message_preview": preview_of(row.preview),
    }


def message_out(message: Message | MessageRow) -> dict[str, Any]:
    return {
        "id": message.id,
        "session_id": message.session_id,
        "role": message.role,
        "content": message.content,
        "token_count": message.token_count,
        "created_at": message.created_at,
        "metadata": message.details,
    }


def found_out(found: Found) -> dict[str, Any]:
    return {**session_row(found.chat), "matches": [match._asdict() for match in found.matches]}


def turn_out(outcome: Outcome) -> dict[str, Any]:
    user, assistant, failure = outcome.user_message, outcome.assistant_message, outcome.failure
    return {
        "turn_id": outcome.turn_id,
        "status": outcome.status,
        "user_message": message_out(user) if user else None,
        "assistant_message": message_out(assistant) if assistant else None,
        "error": failure.as_dict() if failure else None,
        "partial": outcome.partial,
    }
