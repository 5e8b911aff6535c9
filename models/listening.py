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


def pieces_of(app: Flask, turn_id: str, after: int = 0) -> Iterator[list[Piece]]:
    """The pieces numbered above `after`, until the turn has ended. Holds no session between two looks."""
    with app.app_context():
        run = worker().run_of(turn_id)
    if run is not None:
        yield from run.watch(after)
    else:
        yield from _from_database(app, turn_id, after)


def outcome_of(app: Flask, turn_id: str) -> Outcome:
    """How it ended; where even that could not be recorded, what its run says."""
    with app.app_context():
        run = worker().run_of(turn_id)
        return (run and run.outcome) or Turn.find(turn_id).outcome()


def _from_database(app: Flask, turn_id: str, after: int) -> Iterator[list[Piece]]:
    quiet_since = time.monotonic()
    while True:
        with app.app_context():
            running = Turn.find(turn_id).status == "pending"
            fresh = _saved_pieces(turn_id, after)
        if fresh or time.monotonic() - quiet_since > IDLE_SECONDS:
            yield fresh
            quiet_since = time.monotonic()
        after = fresh[-1][0] if fresh else after
        if not running:
            return
        time.sleep(LOOK_SECONDS)


def _saved_pieces(turn_id: str, after: int) -> list[Piece]:
    rows = db.session.execute(
        select(TurnPieces.seq, TurnPieces.texts).where(TurnPieces.turn_id == turn_id).order_by(TurnPieces.seq)
    )
    pieces = [piece for first, texts in rows for piece in enumerate(json.loads(texts), first)]
    return [piece for piece in pieces if piece[0] > after]
