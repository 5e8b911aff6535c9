"""Turn: one question and its answer. Claim, complete, fail, stop; answering.py runs it. Its table is chat_turns."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from sqlalchemy import BindParameter, ForeignKey, bindparam, delete, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, mapped_column

from models import attachments
from models.base import Base, db, insert_row, later_than, now, release, run_statement, table_of, transaction
from models.chat import Chat
from models.errors import (
    ChatNotFound,
    IdempotencyConflict,
    NotLatestMessage,
    StorageError,
    TurnInProgress,
    TurnNotFound,
)
from models.message import Message
from models.outcome import INTERRUPTED, Ask, Failure, Outcome, Reply
from models.run import Run
from models.worker import TurnPieces, TurnRun, worker


class Place(NamedTuple):
    """What a claim must know of its chat, read in one statement: claims queue up for the write lock."""

    deleted_at: str | None
    asked_before: str | None
    running: str | None
    newest_message: str | None


class Standing(NamedTuple):
    """And what its end must know."""

    status: str
    title: str
    title_source: str | None
    updated_at: str
    newest_message: str | None


class Turn(Base):
    __tablename__ = "chat_turns"

    id: Mapped[str] = mapped_column(primary_key=True)
    session_id: Mapped[str] = mapped_column(ForeignKey("chat_sessions.id"))
    payload_hash: Mapped[str]
    user_message_id: Mapped[str | None] = mapped_column(ForeignKey("chat_messages.id"))
    assistant_message_id: Mapped[str | None] = mapped_column(ForeignKey("chat_messages.id"))
    status: Mapped[str]
    error_detail: Mapped[str | None]
    created_at: Mapped[str]
    completed_at: Mapped[str | None]

    # Claiming: exactly one request goes on per request_id, and one turn per chat, by the database's own uniqueness.

    @classmethod
    def begin(cls, chat_id: str, ask: Ask) -> tuple[Outcome, Turn, Run | None]:
        """Claims the turn and writes the person's message. No run: it was asked before, and this is the replay."""
        image = cls._save_image(chat_id, ask) if ask.image else None
        details = {"img_path": image} if image else {}

        def write_question(place: Place) -> tuple[Message, Message | None]:
            return Message.write(chat_id, "user", ask.query, details, newest=place.newest_message), None

        run = None
        try:
            outcome, turn, run = cls._claim(chat_id, ask, write_question)
        finally:
            if run is None and image:
                attachments.remove([image])
        return outcome, turn, run

    @classmethod
    def _save_image(cls, chat_id: str, ask: Ask) -> str | None:
        """Before the transaction: files are slow. Not for a replay, which has its image."""
        if cls._place(chat_id, ask.request_id).asked_before:
            return None
        release()
        return attachments.save_image(ask.image or "", ask.image_type)

    @classmethod
    def begin_retry(cls, chat_id: str, message_id: str, ask: Ask) -> tuple[Outcome, Turn, Run | None]:
        """Claims a turn that answers the newest question again. While it runs it is known by its assistant message."""

        def find_question(_place: Place) -> tuple[Message, Message | None]:
            answer = Message.find(chat_id, message_id)
            answer.require_latest()
            question = Message.latest(chat_id, "user")
            if answer.role != "assistant" or question is None:
                raise NotLatestMessage()
            return question, answer

        return cls._claim(chat_id, ask, find_question)

    @classmethod
    def _claim(
        cls, chat_id: str, ask: Ask, prepare: Callable[[Place], tuple[Message, Message | None]]
    ) -> tuple[Outcome, Turn, Run | None]:
        worker().require_room()
        run = None
        try:
            with transaction():
                place = cls._place(chat_id, ask.request_id)
                if place.asked_before:
                    turn = cls._replay(chat_id, ask)
                    return turn.outcome(), turn, None
                if place.running:
                    cls.require_idle(chat_id)
                question, answer = prepare(place)
                turn = cls._insert(chat_id, ask, question, answer)
                run = worker().start(turn.id, question)
        except BaseException as error:
            if run is not None:
                worker().forget(run.turn_id)
            if not isinstance(error, IntegrityError):
                raise
            # Another process was first between our look and our insert: with its row in sight we know what to say.
            return cls._claim(chat_id, ask, prepare)
        return Outcome(turn.id, "pending", question, answer), turn, run

    @classmethod
    def _place(cls, chat_id: str, request_id: str) -> Place:
        row = run_statement(PLACE, chat=chat_id, turn=request_id).first()
        if row is None or row[0] is not None:
            raise ChatNotFound()
        return Place._make(row)

    @classmethod
    def _insert(cls, chat_id: str, ask: Ask, question: Message, answer: Message | None) -> Turn:
        turn = cls(
            id=ask.request_id,
            session_id=chat_id,
            payload_hash=ask.payload_hash,
            user_message_id=question.id,
            assistant_message_id=answer.id if answer else None,
            status="pending",
            created_at=now(),
        )
        insert_row(turn)
        return turn

    @classmethod
    def _replay(cls, chat_id: str, ask: Ask) -> Turn:
        turn = cls.find(ask.request_id)
        if turn.status == "pending" or (turn.payload_hash, turn.session_id) != (ask.payload_hash, chat_id):
            raise IdempotencyConflict(
                existing_status=turn.status, expected_hash=turn.payload_hash, received_hash=ask.payload_hash
            )
        return turn

    @classmethod
    def require_idle(cls, chat_id: str) -> None:
        running = db.session.scalar(select(cls).where(cls.session_id == chat_id, cls.status == "pending"))
        if running is not None and not running.interrupt_if_abandoned():
            raise TurnInProgress(turn_id=running.id)

    @classmethod
    def find(cls, turn_id: str) -> Turn:
        turn = db.session.get(cls, turn_id)
        if turn is None:
            raise TurnNotFound()
        with suppress(StorageError):  # locked just now: it stands as pending, and the beat will end it
            turn.interrupt_if_abandoned()
        return turn

    # Ending.

    def complete(self, reply: Reply, mode: str, question: Message | None) -> Outcome:
        """The answer, the chat's new place in the list and the turn's end in one transaction: both or neither."""
        with transaction():
            row = run_statement(STANDING, chat=self.session_id, turn=self.id).first()
            if row is None:
                raise TurnNotFound("The chat was deleted while it was being answered.")
            standing = Standing._make(row)
            if standing.status != "pending":
                return Turn.find(self.id).outcome()
            answer = self._store(reply, mode, standing.newest_message)
            self._move_chat_up(standing, question)
            run_statement(COMPLETE, turn=self.id, now=now(), answer=answer.id)
            run_statement(FORGET_RUN, turn=self.id)
        return Outcome(self.id, "completed", question, answer)

    def _store(self, reply: Reply, mode: str, newest: str | None) -> Message:
        details = reply.details(mode)
        count = details["usage"]["completion_tokens"]
        if self.assistant_message_id is None:
            return Message.write(self.session_id, "assistant", reply.text, details, count, newest=newest)
        answer = db.session.get_one(Message, self.assistant_message_id)
        answer.add_variant(reply.text, details, count)
        return answer

    def _move_chat_up(self, standing: Standing, question: Message | None) -> None:
        named = Chat.named_after(question.content if question else "", standing.title, standing.title_source)
        title, source = named or (standing.title, standing.title_source)
        moment = later_than(standing.updated_at)
        run_statement(MOVE_UP, chat=self.session_id, title=title, source=source, moment=moment)

    def fail(self, failure: Failure, partial: str) -> Outcome:
        """The record explains itself: the question stays, marked; what had come of the answer stays with the turn."""
        with transaction() as session:
            turn = session.get(Turn, self.id)
            if turn is None:
                return Outcome(self.id, "failed", failure=failure, partial=partial or None)
            if turn.status == "pending":
                question, answer = turn.messages()
                if question is not None and answer is None:
                    question.add_details(error=failure.as_dict())
                turn.status, turn.completed_at = "failed", now()
                turn.error_detail = json.dumps(failure.as_dict(), ensure_ascii=False)
                session.execute(delete(TurnPieces).where(TurnPieces.turn_id == self.id))
                session.execute(
                    update(TurnRun).where(TurnRun.turn_id == self.id).values(worker="", partial=partial or None)
                )
        return turn.outcome()

    # Looking back.

    def messages(self) -> tuple[Message | None, Message | None]:
        question = db.session.get(Message, self.user_message_id) if self.user_message_id else None
        answer = db.session.get(Message, self.assistant_message_id) if self.assistant_message_id else None
        return question, answer

    def outcome(self) -> Outcome:
        question, answer = self.messages()
        if self.status != "failed":
            return Outcome(self.id, self.status, question, answer)
        left = db.session.get(TurnRun, self.id)
        return Outcome(
            self.id, "failed", question, None, _failure_from(self.error_detail), left.partial if left else None
        )

    # Stopping, and turns that a dead process left.

    def stop(self) -> None:
        """From any tab and any process: here at once, elsewhere by a note that its worker reads at its next beat."""
        run = worker().run_of(self.id)
        if run is not None:
            run.stop()
        elif self.status == "pending":
            with transaction() as session:
                session.execute(update(TurnRun).where(TurnRun.turn_id == self.id).values(stop_requested_at=now()))

    def interrupt_if_abandoned(self) -> bool:
        """Nobody is writing this answer any more: it must not block its chat."""
        if self.status != "pending" or not worker().has_lost(self.id):
            return False
        pieces = select(TurnPieces.texts).where(TurnPieces.turn_id == self.id).order_by(TurnPieces.seq)
        partial = "".join(text for texts in db.session.scalars(pieces) for text in json.loads(texts))
        self.fail(INTERRUPTED, partial)
        db.session.refresh(self)
        return True

    @classmethod
    def interrupt_all_abandoned(cls) -> int:
        ids = db.session.scalars(select(cls.id).where(cls.status == "pending")).all()
        strangers = [turn_id for turn_id in ids if worker().run_of(turn_id) is None]
        found = [db.session.get(cls, turn_id) for turn_id in strangers]
        return sum(turn.interrupt_if_abandoned() for turn in found if turn is not None)


# What every turn runs, built once: putting these together anew would cost more than running them.
turns, chats, messages, runs = table_of(Turn), table_of(Chat), table_of(Message), table_of(TurnRun)
_chat: BindParameter[str] = bindparam("chat")
_turn: BindParameter[str] = bindparam("turn")
_newest = select(func.max(messages.c.created_at)).where(messages.c.session_id == _chat).scalar_subquery()
_running = select(turns.c.id).where(turns.c.session_id == _chat, turns.c.status == "pending").scalar_subquery()
_asked_before = select(turns.c.id).where(turns.c.id == _turn).scalar_subquery()

PLACE = select(chats.c.deleted_at, _asked_before, _running, _newest).where(chats.c.id == _chat)
STANDING = (
    select(turns.c.status, chats.c.title, chats.c.title_source, chats.c.updated_at, _newest)
    .join(chats, chats.c.id == turns.c.session_id)
    .where(turns.c.id == _turn)
)
COMPLETE = (
    turns.update()
    .where(turns.c.id == _turn)
    .values(status="completed", completed_at=bindparam("now"), assistant_message_id=bindparam("answer"))
)
MOVE_UP = (
    chats.update()
    .where(chats.c.id == _chat)
    .values(title=bindparam("title"), title_source=bindparam("source"), updated_at=bindparam("moment"))
)
FORGET_RUN = runs.delete().where(runs.c.turn_id == _turn)


def _failure_from(error_detail: str | None) -> Failure:
    try:
        return Failure(**json.loads(error_detail or ""))
    except (ValueError, TypeError):
        return Failure("LLM_ERROR", error_detail or "The answer failed.")
