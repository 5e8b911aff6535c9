"""An end that cannot be recorded is owed: the answer stays in memory, whole, until the database takes it."""

from __future__ import annotations

import pytest

from models import answering
from models.chat import Chat
from models.errors import StorageError, TurnInProgress
from models.outcome import Ask
from models.turn import Turn
from models.worker import worker


def refuse(*_: object) -> None:
    raise StorageError()


def test_what_could_not_be_recorded_is_recorded_later_with_every_word(app, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(answering, "FAULT_PATIENCE", 0.0)
    chat = Chat.create()
    ask = Ask("0b0e1f52-90f1-4d59-8a0e-8e4ad1f1c111", "hash", "Hello")
    _, turn, run = Turn.begin(chat.id, ask)
    assert run is not None
    with monkeypatch.context() as broken:
        broken.setattr(Turn, "complete", refuse)
        broken.setattr(Turn, "fail", refuse)
        outcome = answering.answer(turn, run, ask)
    assert (outcome.recorded, outcome.status) == (False, "failed")
    with pytest.raises(TurnInProgress):
        Turn.require_idle(chat.id)

    worker()._do(worker().now_and_then)

    stored = Turn.find(turn.id).outcome()
    assert (stored.status, stored.partial) == ("failed", run.text)
    assert "built-in reader" in run.text
    assert worker().run_of(turn.id) is None
    Turn.require_idle(chat.id)
