"""Turn: one question and its answer. Claim, answer, complete, fail, stop. Its table is chat_turns."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from flask import current_app
from sqlalchemy import ForeignKey, delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, mapped_column

from adapters.errors import Aborted, AdapterError
from adapters.providers import Provider
from adapters.values import Options, Usage
from models import attachments, setting, tokens
from models.base import Base, config, db, now, release, transaction
from models.chat import Chat
from models.errors import (
    DomainError,
    IdempotencyConflict,
    NotLatestMessage,
    StorageError,
    TurnInProgress,
    TurnNotFound,
)
from models.message import Message
from models.prompt import Prompt
from models.run import Run
from models.worker import TurnPieces, TurnRun, worker

Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class Ask:
    """What a client asks of a turn. For a retry the question stands in the chat already, and `query` is empty."""

    request_id: str
    payload_hash: str
    query: str = ""
    mode: str = "hybrid"
    image: str | None = None
    image_type: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    history_limit: int | None = None
    max_history_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no answer; `kind` is the class of a model server's fault, for the sentence that pages show."""

    code: str
    message: str
    kind: str | None = None

    def as_dict(self) -> dict[str, str]:
        error = {"code": self.code, "message": self.message}
        return {**error, "kind": self.kind} if self.kind else error


@dataclass(frozen=True, slots=True)
class Reply:
    text: str
    model: str
    usage: Usage | None
    latency_ms: int
    stopped: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a turn ended, with the rows as they were stored."""

    turn_id: str
    status: str
    user_message: Message | None = None
    assistant_message: Message | None = None
    failure: Failure | None = None
    partial: str | None = None


class Stopped(Exception):
    """Stopped before the first word."""


INTERRUPTED = Failure("INTERRUPTED", "The program stopped before the answer was complete.")
STOPPED = Failure("STOPPED", "Stopped before the answer began.")


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
    def begin(cls, chat_id: str, ask: Ask) -> tuple[Turn, Run | None]:
        """Claims the turn and writes the person's message. No run: it was asked before, and this is the replay."""
        if replayed := cls._replay(chat_id, ask):
            return replayed, None
        release()
        image = attachments.save_image(ask.image, ask.image_type) if ask.image else None
        details = {"img_path": image} if image else {}

        def write_question() -> tuple[Message, Message | None]:
            return Message.write(chat_id, "user", ask.query, details, None), None

        try:
            turn, run = cls._claim(chat_id, ask, write_question)
        except BaseException:
            attachments.remove([image] if image else [])
            raise
        if run is None:
            attachments.remove([image] if image else [])
        return turn, run

    @classmethod
    def begin_retry(cls, chat_id: str, message_id: str, ask: Ask) -> tuple[Turn, Run | None]:
        """Claims a turn that answers the newest question again. While it runs it is known by its assistant message."""

        def find_question() -> tuple[Message, Message | None]:
            answer = Message.find(chat_id, message_id)
            answer.require_latest()
            question = Message.latest(chat_id, "user")
            if answer.role != "assistant" or question is None:
                raise NotLatestMessage()
            return question, answer

        return cls._claim(chat_id, ask, find_question)

    @classmethod
    def _claim(
        cls, chat_id: str, ask: Ask, prepare: Callable[[], tuple[Message, Message | None]]
    ) -> tuple[Turn, Run | None]:
        worker().require_room()
        try:
            with transaction() as session:
                if replayed := cls._replay(chat_id, ask):
                    return replayed, None
                cls.require_idle(chat_id)
                question, answer = prepare()
                turn = cls._insert(chat_id, ask, question, answer)
                session.flush()
                run = worker().start(turn.id)
        except IntegrityError:
            # Another process was first between our look and our insert: with its row in sight we know what to say.
            return cls._claim(chat_id, ask, prepare)
        return turn, run

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
        db.session.flush()  # the message first: the turn refers to it
        db.session.add(turn)
        return turn

    @classmethod
    def _replay(cls, chat_id: str, ask: Ask) -> Turn | None:
        Chat.find(chat_id)
        turn = db.session.get(cls, ask.request_id)
        if turn is None:
            return None
        turn.interrupt_if_abandoned()
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
        turn.interrupt_if_abandoned()
        return turn

    # Answering: a short list of named steps, and no transaction open while the model works.

    def answer(self, run: Run, ask: Ask) -> Outcome:
        try:
            prompt = Prompt.for_question(self.session_id, self.user_message_id, ask.history_limit, ask.max_history_tokens)
            release()
            reply = self._listen(run, prompt, setting.provider(), ask)
            outcome = _patiently(lambda: self.complete(reply, ask.mode))
        except Exception as error:
            failure = _why(error)
            outcome = self._fail_or_say_so(failure, run.text)
        finally:
            worker().forget(run)
        return run.finish(outcome)

    def _listen(self, run: Run, prompt: Prompt, provider: Provider, ask: Ask) -> Reply:
        began, model, usage = time.monotonic(), provider.model, None
        options = Options(ask.temperature, ask.max_tokens, run.cancel)
        try:
            for delta in provider.stream(prompt.messages, options):
                if delta.text:
                    run.append(delta.text)
                model, usage = delta.model or model, delta.usage or usage
        except Aborted:
            if run.ending == "timeout":
                raise AdapterError("timeout", "The answer took too long.") from None
        text = run.text
        if not text.strip():
            raise Stopped() if run.ending else AdapterError("backend", "The model server sent an empty answer.")
        return Reply(text, model, usage, round((time.monotonic() - began) * 1000), run.ending == "stopped")

    def complete(self, reply: Reply, mode: str) -> Outcome:
        """The answer, the chat's new place in the list and the turn's end in one transaction: both or neither."""
        with transaction() as session:
            turn = session.get(Turn, self.id)
            if turn is None:
                raise TurnNotFound("The chat was deleted while it was being answered.")
            if turn.status != "pending":
                return turn.outcome()
            question, answer = turn.messages()
            details = _details_of(reply, mode)
            count = details["usage"]["completion_tokens"]
            if answer is not None:
                answer.add_variant(reply.text, details, count)
            else:
                answer = Message.write(turn.session_id, "assistant", reply.text, details, count)
                session.flush()
                turn.assistant_message_id = answer.id
            chat = session.get_one(Chat, turn.session_id)
            chat.name_after(question.content if question else "")
            chat.touch()
            turn.status, turn.completed_at = "completed", now()
            _forget_run(turn.id)
        return turn.outcome()

    def fail(self, failure: Failure, partial: str) -> Outcome:
        """The record explains itself: the question stays, marked; what had arrived of the answer stays with the turn."""
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
                _forget_run(turn.id, partial)
        return turn.outcome()

    def _fail_or_say_so(self, failure: Failure, partial: str) -> Outcome:
        try:
            return _patiently(lambda: self.fail(failure, partial))
        except DomainError as error:
            current_app.logger.error("Turn %s ended with %s and could not be recorded: %s", self.id, failure, error)
            failure = failure if failure.code != "LLM_ERROR" else Failure(error.code, error.message)
            return Outcome(self.id, "failed", failure=failure, partial=partial or None)

    # Looking back.

    def messages(self) -> tuple[Message | None, Message | None]:
        found = [db.session.get(Message, key) if key else None for key in (self.user_message_id, self.assistant_message_id)]
        return found[0], found[1]

    def outcome(self) -> Outcome:
        question, answer = self.messages()
        failure, partial = None, None
        if self.status == "failed":
            failure = _failure_from(self.error_detail)
            answer = None
            left = db.session.get(TurnRun, self.id)
            partial = left.partial if left else None
        return Outcome(self.id, self.status, question, answer, failure, partial)

    # Stopping, and turns that a dead process left.

    def stop(self) -> None:
        """From any tab and any process: here at once, elsewhere by a note that its worker reads at its next beat."""
        run = worker().run_of(self.id)
        if run is not None:
            run.stop()
        elif self.status == "pending":
            with transaction() as session:
                lease = session.get(TurnRun, self.id)
                if lease is not None:
                    lease.stop_requested_at = now()

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
        pending = db.session.scalars(select(cls).where(cls.status == "pending")).all()
        return sum(turn.interrupt_if_abandoned() for turn in pending)


def _details_of(reply: Reply, mode: str) -> dict[str, Any]:
    details: dict[str, Any] = {
        "mode": mode,
        "sources": [],
        "model": reply.model,
        "usage": tokens.usage(reply.usage, reply.text),
        "latency_ms": reply.latency_ms,
    }
    if reply.stopped:
        details["stopped"] = True
    return details


def _forget_run(turn_id: str, partial: str = "") -> None:
    db.session.execute(delete(TurnPieces).where(TurnPieces.turn_id == turn_id))
    lease = db.session.get(TurnRun, turn_id)
    if lease is not None and partial:
        lease.partial, lease.stop_requested_at = partial, None
    elif lease is not None:
        db.session.delete(lease)


def _failure_from(error_detail: str | None) -> Failure:
    try:
        return Failure(**json.loads(error_detail or ""))
    except (ValueError, TypeError):
        return Failure("LLM_ERROR", error_detail or "The answer failed.")


def _why(error: Exception) -> Failure:
    match error:
        case Stopped():
            return STOPPED
        case AdapterError():
            return Failure("LLM_ERROR", error.message, error.kind)
        case DomainError():
            return Failure(error.code, error.message)
    current_app.logger.exception("A turn failed in a way that nobody foresaw.")
    return Failure("INTERNAL_ERROR", "Something went wrong inside Holdfast; its log says what.")


def _patiently(step: Callable[[], Done]) -> Done:
    """An answer that is there must not be lost to a database that is locked or full for a moment."""
    give_up = time.monotonic() + 2 * config().busy_timeout_ms / 1000
    pause = 0.1
    while True:
        try:
            return step()
        except StorageError as error:
            if time.monotonic() > give_up or (not error.busy and pause > 1):
                raise
        time.sleep(pause)
        pause *= 2
