"""/api/chat/sessions/{id}/messages: what was said."""

from __future__ import annotations

from typing import Any

from flask import Blueprint

from models import revision
from models.chat import Chat
from models.errors import ChatNotFound, InvalidCursor, InvalidValue, MessageNotFound, NotLatestMessage, TurnInProgress
from models.message import Message
from routes.api.answers import MessageOut, MessagesPage
from routes.api.bodies import MessageChange, MessagesQuery
from routes.api.contract import endpoint
from routes.api.serializers import message_out, page_out

messages = Blueprint("messages", __name__, url_prefix="/api/chat/sessions/<session_id>/messages")


@endpoint(messages, "GET", "", query=MessagesQuery, returns=MessagesPage, errors=(ChatNotFound, InvalidCursor))
def index(session_id: str, query: MessagesQuery) -> Any:
    """Read messages: the newest page first, each page oldest to newest; the cursor walks back in history."""
    Chat.require(session_id)
    page = Message.page(session_id, query.limit, query.cursor)
    return page_out("messages", page, message_out)


@endpoint(
    messages,
    "PATCH",
    "/<message_id>",
    body=MessageChange,
    returns=MessageOut,
    errors=(ChatNotFound, MessageNotFound, NotLatestMessage, TurnInProgress),
)
def update(session_id: str, message_id: str, body: MessageChange) -> Any:
    """Edit the newest question (`content`), or choose a version of the newest answer (`variant_index`)."""
    if body.content is not None and body.variant_index is None:
        return message_out(revision.edit_question(session_id, message_id, body.content))
    if body.variant_index is not None and body.content is None:
        return message_out(revision.choose_version(session_id, message_id, body.variant_index))
    raise InvalidValue("body", "Give either content or variant_index.")
