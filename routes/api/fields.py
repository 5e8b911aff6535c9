"""The values that requests may carry, each checked in one place."""

from __future__ import annotations

import re
import uuid
from typing import Annotated, Any

from flask import current_app
from pydantic import AfterValidator, BeforeValidator, Field, StrictFloat, StrictInt, StrictStr, WithJsonSchema
from pydantic_core import PydanticCustomError

from routes.api.contract import values_in

MODES = ("naive", "local", "global", "hybrid", "mix", "bypass")
_UUID = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE | re.ASCII)


def limits() -> Any:
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
    longest = limits().max_query_chars
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
    longest = limits().session_title_max_len
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
