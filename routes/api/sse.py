"""A turn as Server-Sent Events: start, deltas as they come, sources, and last the turn as it ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from flask import Flask, Response

from models.base import release
from models.listening import Listener
from models.outcome import Outcome
from models.run import Piece, Run
from routes.api.serializers import message_out, turn_out

KEEP_OPEN = ": still here\n\n"


def respond(events: Iterator[str]) -> Response:
    release()  # a stream lives long: it starts without a database connection in its hands
    return Response(events, mimetype="text/event-stream", headers={"X-Accel-Buffering": "no"})


def live(outcome: Outcome, run: Run) -> Iterator[str]:
    """The turn that this request began; clients of this one know no `id:` lines."""
    yield _start(outcome)
    for pieces in run.watch():
        yield _deltas(pieces) or KEEP_OPEN
    assert run.outcome is not None
    yield _end(run.outcome)


def replayed(outcome: Outcome) -> Iterator[str]:
    yield _start(outcome)
    yield _end(outcome)


def attached(app: Flask, outcome: Outcome, after: int | None) -> Iterator[str]:
    """A turn that is running or done, from `after` on; events carry ids, so that a browser resumes by itself."""
    if outcome.status != "pending":
        yield _end(outcome, "final")
        return
    if after is None:
        yield _start(outcome, "0")
    listener = Listener(app, outcome.turn_id)
    for pieces in listener.pieces(after or 0):
        yield _deltas(pieces, with_ids=True) or KEEP_OPEN
    yield _end(listener.outcome(), "final")


def _start(outcome: Outcome, name: str | None = None) -> str:
    user = message_out(outcome.user_message) if outcome.user_message else None
    return _event({"type": "start", "turn_id": outcome.turn_id, "user_message": user}, name)


def _deltas(pieces: list[Piece], with_ids: bool = False) -> str:
    """Pieces that are there together travel together, in one write."""
    return "".join(
        _event({"type": "delta", "delta": text, "seq": seq}, str(seq) if with_ids else None) for seq, text in pieces
    )


def _end(outcome: Outcome, name: str | None = None) -> str:
    answer = outcome.assistant_message
    sources = answer.details.get("sources", []) if answer else []
    final = _event({"type": "final", "response": turn_out(outcome)}, name)
    return (_event({"type": "sources", "sources": sources}, name) if answer else "") + final


def _event(data: dict[str, Any], name: str | None = None) -> str:
    line = f"data: {json.dumps(data, ensure_ascii=False)}\n\n"
    return line if name is None else f"id: {name}\n{line}"
