"""Message: what was said, by whom, and what it carries; pages of messages. Its table is chat_messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from sqlalchemy import ForeignKey, Integer, bindparam, select, tuple_
from sqlalchemy.orm import Mapped, mapped_column

from models import tokens
from models.base import Base, as_object, db, insert_row, later_than, new_id, now, run_statement
from models.errors import MessageNotFound, NotLatestMessage
from models.paging import Page, decode_keyset, encode_cursor


class Carries:
    """What is in a message's metadata, the same for a stored row and for one that was only read."""

    metadata_json: Any

    @property
    def details(self) -> dict[str, Any]:
        return as_object(self.metadata_json)

    @property
    def failed(self) -> bool:
        return bool(self.details.get("error"))

    @property
    def goes_into_prompts(self) -> bool:
        """Failed, virtual and inactive ones never reach a model."""
        details = self.details
        return not (details.get("error") or details.get("isVirtual") or details.get("status") == 1)


class _Columns(NamedTuple):
    id: str
    session_id: str
    role: str
    content: str
    token_count: int | None
    created_at: str
    metadata_json: str | None


class MessageRow(Carries, _Columns):
    """A message to read: a page of these costs a third of a page of rows that could be changed."""

    __slots__ = ()


class Message(Carries, Base):
    __tablename__ = "chat_messages"

    id: Mapped[str] = mapped_column(primary_key=True)
    session_id: Mapped[str] = mapped_column(ForeignKey("chat_sessions.id"))
    role: Mapped[str]
    content: Mapped[str]
    token_count: Mapped[int | None]
    user_id: Mapped[str | None]
    created_at: Mapped[str]
    metadata_json: Mapped[str | None]

    @classmethod
    def write(
        cls,
        chat_id: str,
        role: str,
        content: str,
        details: dict[str, Any],
        token_count: int | None = None,
        *,
        newest: str | None,
    ) -> Message:
        """Adds one at the end of its chat, after the `newest` time there, inside the caller's transaction."""
        message = cls(
            id=new_id(),
            session_id=chat_id,
            role=role,
            content=content,
            token_count=tokens.estimate(content) if token_count is None else token_count,
            created_at=later_than(newest),
        )
        message.put_details(details)
        insert_row(message)
        return message

    def put_details(self, details: dict[str, Any]) -> None:
        self.metadata_json = json.dumps(details, ensure_ascii=False) if details else None

    def add_details(self, **more: Any) -> None:
        self.put_details({**self.details, **more})

    @classmethod
    def find(cls, chat_id: str, message_id: str) -> Message:
        message = db.session.get(cls, message_id)
        if message is None or message.session_id != chat_id:
            raise MessageNotFound()
        return message

    @classmethod
    def page(cls, chat_id: str, limit: int, cursor: str | None = None) -> Page[MessageRow]:
        """The newest page first, each one oldest to newest; the cursor walks back in history."""
        before = decode_keyset(cursor, "created_at") if cursor else {}
        found = run_statement(NEWEST_BEFORE if before else NEWEST, chat=chat_id, most=limit + 1, **before)
        rows = [MessageRow._make(row) for row in found]
        last = rows[limit - 1] if len(rows) > limit else None
        return Page(rows[:limit][::-1], last and encode_cursor(created_at=last.created_at, id=last.id))

    @classmethod
    def backwards(cls, chat_id: str, batch: int = 32) -> Iterator[MessageRow]:
        """Every message of a chat from the newest on, read in small pages: most callers soon have enough."""
        cursor = None
        while True:
            page = cls.page(chat_id, batch, cursor)
            yield from reversed(page.rows)
            cursor = page.next_cursor
            if cursor is None:
                return

    @classmethod
    def latest(cls, chat_id: str, role: str) -> Message | None:
        spoken = (row.id for row in cls.backwards(chat_id) if row.role == role and not row.failed)
        newest = next(spoken, None)
        return db.session.get(cls, newest) if newest else None

    def require_latest(self) -> None:
        newest = Message.latest(self.session_id, self.role)
        if newest is None or newest.id != self.id:
            raise NotLatestMessage()

    # Versions of an answer: `variants` holds every one, oldest first; `variant_index` says which of them is shown.

    def add_variant(self, content: str, details: dict[str, Any], token_count: int) -> None:
        variants = [
            *self.variants,
            {"content": content, "token_count": token_count, "created_at": now(), "metadata": details},
        ]
        self._show(variants, len(variants) - 1)

    def show_variant(self, index: int) -> None:
        self._show(self.variants, index)

    @property
    def variants(self) -> list[dict[str, Any]]:
        return self.details.get("variants") or [self._as_variant()]

    def _as_variant(self) -> dict[str, Any]:
        return {
            "content": self.content,
            "token_count": self.token_count,
            "created_at": self.created_at,
            "metadata": self.details,
        }

    def _show(self, variants: list[dict[str, Any]], index: int) -> None:
        shown = variants[index]
        self.content, self.token_count = shown["content"], shown["token_count"]
        self.put_details({**shown["metadata"], "variants": variants, "variant_index": index})


NEWEST = (
    select(*(getattr(Message, name) for name in MessageRow._fields))
    .where(Message.session_id == bindparam("chat"))
    .order_by(Message.created_at.desc(), Message.id.desc())
    .limit(bindparam("most", type_=Integer))
)
NEWEST_BEFORE = NEWEST.where(tuple_(Message.created_at, Message.id) < tuple_(bindparam("moment"), bindparam("last_id")))
