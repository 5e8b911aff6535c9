"""What requests look like: their bodies and their query strings."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, StrictStr

from models.outcome import Ask
from routes.api.contract import Body, Query
from routes.api.fields import (
    Details,
    HistoryLimit,
    HistoryTokens,
    MaxTokens,
    Mode,
    OptionalRequestId,
    Question,
    RequestId,
    Temperature,
    Text,
    Title,
    TopK,
    VariantIndex,
    limits,
)


class NewSession(Body):
    title: Title | None = None
    metadata: Details | None = None


class SessionChange(Body):
    title: Title | None = None
    metadata: Details | None = None


class SessionsQuery(Query):
    limit: Annotated[int, Field(ge=1, le=100)] = Field(default_factory=lambda: limits().sessions_default_limit)
    cursor: str | None = None
    q: Text = ""


class MessagesQuery(Query):
    limit: Annotated[int, Field(ge=1, le=200)] = Field(default_factory=lambda: limits().messages_default_limit)
    cursor: str | None = None


class SearchQuery(Query):
    q: Text = ""
    limit: Annotated[int, Field(ge=1, le=100)] = Field(default_factory=lambda: limits().sessions_default_limit)
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
