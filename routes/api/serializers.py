"""From rows to the wire. The frozen contract says *session* where the house says *chat*: the word changes here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from models.base import as_object
from models.chat import Chat, ChatRow
from models.message import Message, MessageRow
from models.names import preview_of
from models.outcome import Outcome
from models.paging import Page
from models.search import Found

Row = TypeVar("Row")


def page_out(name: str, page: Page[Row], out: Callable[[Row], dict[str, Any]]) -> dict[str, Any]:
    return {name: [out(row) for row in page.rows], "next_cursor": page.next_cursor, "has_more": page.has_more}


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
