"""Revision: other words for the newest question, another version of the newest answer. Nothing is thrown away."""

from __future__ import annotations

from models import tokens
from models.base import now, transaction
from models.chat import Chat
from models.errors import InvalidValue
from models.message import Message
from models.turn import Turn


def edit_question(chat_id: str, message_id: str, content: str) -> Message:
    """The earlier words stay with the message; its answer is generated again by a retry."""
    with transaction():
        message = _newest(chat_id, message_id)
        if message.role != "user":
            raise InvalidValue("content", "Only a message of the person can be edited.")
        if content != message.content:
            earlier = [*message.details.get("edits", []), {"content": message.content, "replaced_at": now()}]
            message.content, message.token_count = content, tokens.estimate(content)
            message.add_details(edits=earlier)
    return message


def choose_version(chat_id: str, message_id: str, index: int) -> Message:
    with transaction():
        message = _newest(chat_id, message_id)
        if message.role != "assistant":
            raise InvalidValue("variant_index", "Only an answer has versions.")
        if index >= len(message.variants):
            raise InvalidValue("variant_index", f"There are {len(message.variants)} versions, counted from 0.")
        message.show_variant(index)
    return message


def _newest(chat_id: str, message_id: str) -> Message:
    Chat.find(chat_id)
    message = Message.find(chat_id, message_id)
    Turn.require_idle(chat_id)
    message.require_latest()
    return message
