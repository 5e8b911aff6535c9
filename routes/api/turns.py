"""/api/chat/…/turn, retry, stop, stream: asking, and listening to the answer."""

from __future__ import annotations

import re
from typing import Any

from flask import Blueprint, Response, current_app, request

from models.answering import answer, answer_later
from models.errors import (
    ChatNotFound,
    IdempotencyConflict,
    InvalidImage,
    MessageNotFound,
    NotLatestMessage,
    StorageError,
    TooBusy,
    TurnInProgress,
    TurnNotFound,
)
from models.message import Message
from models.outcome import Ask, Outcome
from models.run import Run
from models.turn import Turn
from models.worker import worker
from routes.api import sse
from routes.api.answers import RetryOut, TurnOut
from routes.api.bodies import AttachQuery, RetryRequest, TurnRequest
from routes.api.contract import EmptyQuery, InvalidMode, MissingRequestId, endpoint
from routes.api.serializers import message_out, turn_out
from routes.limiter import limited

turns = Blueprint("turns", __name__, url_prefix="/api/chat")

CLAIMING = (InvalidMode, ChatNotFound, IdempotencyConflict, TurnInProgress, TooBusy)
ASKING = (EmptyQuery, MissingRequestId, InvalidImage, *CLAIMING)
RETRYING = (*CLAIMING, MessageNotFound, NotLatestMessage)


@endpoint(turns, "POST", "/sessions/<session_id>/turn", body=TurnRequest, returns=TurnOut, errors=ASKING)
@limited
def create(session_id: str, body: TurnRequest) -> Any:
    """Ask, and wait for the whole answer. A repeated request_id gets the stored one; nothing is asked twice."""
    ask = body.ask()
    return turn_out(_answered(*Turn.begin(session_id, ask), ask))


@endpoint(
    turns,
    "POST",
    "/sessions/<session_id>/turn:stream",
    body=TurnRequest,
    returns=TurnOut,
    errors=ASKING,
    streams=True,
)
@limited
def create_stream(session_id: str, body: TurnRequest) -> Response:
    """Ask, and get the answer as Server-Sent Events while it is written."""
    ask = body.ask()
    return _streamed(*Turn.begin(session_id, ask), ask)


@endpoint(
    turns,
    "POST",
    "/sessions/<session_id>/messages/<message_id>/retry",
    body=RetryRequest,
    returns=RetryOut,
    errors=RETRYING,
)
@limited
def retry(session_id: str, message_id: str, body: RetryRequest) -> Any:
    """Answer the newest question again; every version is kept. A retry that fails leaves the old answer as it was."""
    ask = body.ask(message_id)
    outcome = _answered(*Turn.begin_retry(session_id, message_id, ask), ask)
    return {**message_out(Message.find(session_id, message_id)), **turn_out(outcome)}


@endpoint(
    turns,
    "POST",
    "/sessions/<session_id>/messages/<message_id>/retry:stream",
    body=RetryRequest,
    returns=TurnOut,
    errors=RETRYING,
    streams=True,
)
@limited
def retry_stream(session_id: str, message_id: str, body: RetryRequest) -> Response:
    """The same retry as Server-Sent Events."""
    ask = body.ask(message_id)
    return _streamed(*Turn.begin_retry(session_id, message_id, ask), ask)


@endpoint(turns, "GET", "/turns/<turn_id>", returns=TurnOut, errors=(TurnNotFound,))
def show(turn_id: str) -> Any:
    """Read how a turn stands."""
    return turn_out(Turn.find(turn_id).outcome())


@endpoint(
    turns, "GET", "/turns/<turn_id>/stream", query=AttachQuery, returns=TurnOut, errors=(TurnNotFound,), streams=True
)
def attach(turn_id: str, query: AttachQuery) -> Response:
    """Listen to a turn, again or from another tab: from `after` or Last-Event-ID on, or from the start."""
    outcome = Turn.find(turn_id).outcome()
    return sse.respond(sse.attached(current_app._get_current_object(), outcome, _resume_after(query)))  # type: ignore[attr-defined]


@endpoint(turns, "POST", "/turns/<turn_id>/stop", returns=TurnOut, errors=(TurnNotFound,))
def stop(turn_id: str) -> Any:
    """Stop a running turn and keep what it has written. Answers with the turn as it then stands."""
    turn = Turn.find(turn_id)
    run = worker().run_of(turn_id)
    turn.stop()
    ended = run.wait(5.0) if run else None
    return turn_out(ended or Turn.find(turn_id).outcome())


def _answered(outcome: Outcome, turn: Turn, run: Run | None, ask: Ask) -> Outcome:
    if run is not None:
        outcome = answer(turn, run, ask)
    if not outcome.recorded:
        raise StorageError()
    return outcome


def _streamed(outcome: Outcome, turn: Turn, run: Run | None, ask: Ask) -> Response:
    if run is None:
        return sse.respond(sse.replayed(outcome))
    answer_later(turn, run, ask)
    return sse.respond(sse.live(outcome, run))


def _resume_after(query: AttachQuery) -> int | None:
    last = request.headers.get("Last-Event-ID", "")
    return query.after if query.after is not None else int(last) if re.fullmatch("[0-9]{1,15}", last) else None
