"""/api/chat/sessions: the chats."""

from __future__ import annotations

from typing import Any

from flask import Blueprint

from models.chat import Chat
from models.errors import ChatNotFound, InvalidCursor
from routes.api.answers import Deleted, SessionOut, SessionsPage, SessionWithCount
from routes.api.bodies import DeleteQuery, NewSession, SessionChange, SessionsQuery
from routes.api.contract import endpoint
from routes.api.serializers import page_out, session_out, session_row

sessions = Blueprint("sessions", __name__, url_prefix="/api/chat/sessions")


@endpoint(sessions, "POST", "", body=NewSession, returns=SessionOut, status=201)
def create(body: NewSession) -> Any:
    """Make a chat."""
    return session_out(Chat.create(body.title, body.metadata)), 201


@endpoint(sessions, "GET", "", query=SessionsQuery, returns=SessionsPage, errors=(InvalidCursor,))
def index(query: SessionsQuery) -> Any:
    """List chats, the one changed last first; `q` keeps those whose title contains it."""
    page = Chat.page(query.limit, query.cursor, query.q)
    return page_out("sessions", page, session_row)


@endpoint(sessions, "GET", "/<session_id>", returns=SessionWithCount, errors=(ChatNotFound,))
def show(session_id: str) -> Any:
    """Read one chat."""
    chat = Chat.find(session_id)
    return {**session_out(chat), "message_count": chat.message_count}


@endpoint(sessions, "PATCH", "/<session_id>", body=SessionChange, returns=SessionOut, errors=(ChatNotFound,))
def update(session_id: str, body: SessionChange) -> Any:
    """Rename a chat, or merge metadata into what is there."""
    return session_out(Chat.change(session_id, body.title, body.metadata))


@endpoint(sessions, "DELETE", "/<session_id>", query=DeleteQuery, returns=Deleted, errors=(ChatNotFound,))
def destroy(session_id: str, query: DeleteQuery) -> Any:
    """Move a chat to the Trash; with `hard=true` remove it for ever, with its messages, turns and files."""
    if query.hard:
        Chat.destroy(session_id)
        deleted_at = None
    else:
        deleted_at = Chat.remove(session_id).deleted_at
    return {"id": session_id, "deleted": True, "hard": query.hard, "deleted_at": deleted_at}
