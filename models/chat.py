"""Chat: create, rename, merge metadata, remove, restore; pages of chats. Its table is chat_sessions."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from sqlalchemy import Integer, bindparam, delete, func, select, tuple_
from sqlalchemy.orm import Mapped, mapped_column

from models import attachments
from models.base import Base, as_object, config, db, later_than, new_id, now, run_statement, transaction
from models.errors import ChatNotFound
from models.names import DEFAULT_TITLE, title_from
from models.paging import Page, decode_keyset, encode_cursor


class ChatRow(NamedTuple):
    """A line of the list: read without touching a message."""

    id: str
    title: str
    created_at: str
    updated_at: str
    deleted_at: str | None
    metadata_json: str | None
    message_count: int
    preview: str | None


class Summary(Base):
    """What the list shows of a chat; the triggers of migration 0001 keep it."""

    __tablename__ = "chat_summaries"

    chat_id: Mapped[str] = mapped_column(primary_key=True)
    message_count: Mapped[int]
    preview: Mapped[str | None]


class Chat(Base):
    __tablename__ = "chat_sessions"

    id: Mapped[str] = mapped_column(primary_key=True)
    title: Mapped[str]
    user_id: Mapped[str | None]
    created_at: Mapped[str]
    updated_at: Mapped[str]
    deleted_at: Mapped[str | None]
    metadata_json: Mapped[str | None]
    title_source: Mapped[str | None]

    @classmethod
    def create(cls, title: str | None = None, details: dict[str, Any] | None = None) -> Chat:
        moment = now()
        chat = cls(
            id=new_id(),
            title=title or DEFAULT_TITLE,
            title_source="person" if title else "default",
            created_at=moment,
            updated_at=moment,
            metadata_json=json.dumps(details, ensure_ascii=False) if details is not None else None,
        )
        with transaction() as session:
            session.add(chat)
        return chat

    @classmethod
    def find(cls, chat_id: str) -> Chat:
        """A chat that is there and not in the Trash."""
        chat = db.session.get(cls, chat_id)
        if chat is None or chat.deleted_at is not None:
            raise ChatNotFound()
        return chat

    @classmethod
    def require(cls, chat_id: str) -> None:
        """As `find`, for those who only need to know that it is there."""
        if run_statement(IS_LIVE, chat=chat_id).first() is None:
            raise ChatNotFound()

    @classmethod
    def page(cls, limit: int, cursor: str | None = None, title_contains: str = "") -> Page[ChatRow]:
        after = decode_keyset(cursor, "updated_at") if cursor else {}
        query = LISTED_AFTER if after else LISTED
        if title_contains:
            query = query.where(cls.title.contains(title_contains, autoescape=True))
        rows = [ChatRow._make(row) for row in run_statement(query, most=limit + 1, **after)]
        last = rows[limit - 1] if len(rows) > limit else None
        return Page(rows[:limit], last and encode_cursor(updated_at=last.updated_at, id=last.id))

    @classmethod
    def rows_of(cls, ids: list[str]) -> dict[str, ChatRow]:
        """Lines of the list for chats that are known already."""
        found = db.session.execute(ROWS.where(cls.id.in_(ids)))
        return {row.id: row for row in map(ChatRow._make, found)}

    @property
    def details(self) -> dict[str, Any]:
        return as_object(self.metadata_json)

    @property
    def message_count(self) -> int:
        summary = db.session.get(Summary, self.id)
        return summary.message_count if summary else 0

    @classmethod
    def change(cls, chat_id: str, title: str | None = None, details: dict[str, Any] | None = None) -> Chat:
        """A new title, and metadata merged into what is there."""
        with transaction():
            chat = cls.find(chat_id)
            if title is not None:
                chat.title, chat.title_source = title, "person"
            if details is not None:
                chat.metadata_json = json.dumps({**chat.details, **details}, ensure_ascii=False)
            if title is not None or details is not None:
                chat.updated_at = later_than(chat.updated_at)
        return chat

    @staticmethod
    def named_after(message: str, title: str, source: str | None) -> tuple[str, str] | None:
        """The title that a first message gives; none where somebody chose one, also by another program."""
        unnamed = source == "default" or (source is None and title == DEFAULT_TITLE)
        found = title_from(message, config().session_title_max_len) if unnamed else ""
        return (found, "message") if found else None

    @classmethod
    def remove(cls, chat_id: str) -> Chat:
        """To the Trash."""
        with transaction():
            chat = cls.find(chat_id)
            chat.deleted_at = now()
        return chat

    @classmethod
    def restore(cls, chat_id: str) -> Chat:
        with transaction() as session:
            chat = session.get(cls, chat_id)
            if chat is None:
                raise ChatNotFound()
            chat.deleted_at = None
        return chat

    @classmethod
    def destroy(cls, chat_id: str) -> None:
        """For ever, with messages, turns and files; also out of the Trash."""
        with transaction() as session:
            if session.get(cls, chat_id) is None:
                raise ChatNotFound()
            files = attachments.of_chat(chat_id)
            session.execute(delete(cls).where(cls.id == chat_id))
        attachments.remove(files)


# Lists are read at every step of every person: their statements are built once.
ROWS = select(
    Chat.id,
    Chat.title,
    Chat.created_at,
    Chat.updated_at,
    Chat.deleted_at,
    Chat.metadata_json,
    func.coalesce(Summary.message_count, 0),
    Summary.preview,
).outerjoin(Summary, Summary.chat_id == Chat.id)
LISTED = (
    ROWS.where(Chat.deleted_at.is_(None))
    .order_by(Chat.updated_at.desc(), Chat.id.desc())
    .limit(bindparam("most", type_=Integer))
)
IS_LIVE = select(Chat.id).where(Chat.id == bindparam("chat"), Chat.deleted_at.is_(None))
LISTED_AFTER = LISTED.where(tuple_(Chat.updated_at, Chat.id) < tuple_(bindparam("moment"), bindparam("last_id")))
