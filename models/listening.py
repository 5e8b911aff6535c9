"""Listening to an answer that grows: from memory where this process writes it, from the database where another does."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from flask import Flask
from sqlalchemy import select

from models.base import db
from models.outcome import Outcome
from models.run import IDLE_SECONDS, Piece
from models.turn import Turn
from models.worker import TurnPieces, worker

LOOK_SECONDS = 0.25


class Listener:
    """Somebody who listens to a turn; holds no database session between two looks."""

    def __init__(self, app: Flask, turn_id: str) -> None:
        self._app = app
        self._turn_id = turn_id
        with app.app_context():
            self._run = worker().run_of(turn_id)

    def pieces(self, after: int = 0) -> Iterator[list[Piece]]:
        """The pieces numbered above `after`, until the turn has ended."""
        return self._run.watch(after) if self._run else _from_database(self._app, self._turn_id, after)

    def outcome(self) -> Outcome:
        """How it ended; where even that could not be recorded, only its run knows."""
        if self._run is not None and self._run.outcome is not None:
            return self._run.outcome
        with self._app.app_context():
            return Turn.find(self._turn_id).outcome()


def _from_database(app: Flask, turn_id: str, after: int) -> Iterator[list[Piece]]:
    told: str | None = None if after else ""
    quiet_since = time.monotonic()
    while True:
        with app.app_context():
            turn = Turn.find(turn_id)
            saved = _saved_pieces(turn_id)
            rest = None if turn.status == "pending" else _whole_text(turn)
        fresh = [piece for piece in saved if piece[0] > after]
        if saved and saved[-1][0] >= after:  # the beat may not have saved yet what the listener has heard elsewhere
            after = saved[-1][0]
            told = "".join(text for _, text in saved)
        if fresh or time.monotonic() - quiet_since > IDLE_SECONDS:
            yield fresh
            quiet_since = time.monotonic()
        if rest is not None:
            # The last words were never saved as pieces: the end came first. Where we know what was told, tell the rest.
            if told is not None and rest.startswith(told) and rest != told:
                yield [(after + 1, rest[len(told) :])]
            return
        time.sleep(LOOK_SECONDS)


def _saved_pieces(turn_id: str) -> list[Piece]:
    rows = db.session.execute(
        select(TurnPieces.seq, TurnPieces.texts).where(TurnPieces.turn_id == turn_id).order_by(TurnPieces.seq)
    )
    return [piece for first, texts in rows for piece in enumerate(json.loads(texts), first)]


def _whole_text(turn: Turn) -> str:
    outcome = turn.outcome()
    return outcome.assistant_message.content if outcome.assistant_message else outcome.partial or ""
