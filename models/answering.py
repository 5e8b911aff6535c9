"""Answering: the short list of steps from a claimed turn to its end. No transaction is open while the model works."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from flask import current_app

from adapters.errors import Aborted, AdapterError
from adapters.providers import Provider
from adapters.values import Options
from models import setting
from models.base import release
from models.errors import DomainError, StorageError
from models.outcome import STOPPED, UNRECORDED, Ask, Failure, Outcome, Reply
from models.prompt import Prompt
from models.run import Run
from models.turn import Turn
from models.worker import worker

Done = TypeVar("Done")

# Words closer together than this were waiting for us already: they are read to their end before the next rest.
BURST_SECONDS = 0.002
# While the database is locked nobody else can write either: there is no hurry. A full disk is seldom mended soon.
LOCK_PATIENCE, FAULT_PATIENCE = 600.0, 10.0


class StoppedEmpty(Exception):
    """Stopped before the first word."""


def answer(turn: Turn, run: Run, ask: Ask) -> Outcome:
    """Runs to its end whoever is listening; what it writes goes to `run`, and its end to the database."""
    try:
        prompt = Prompt.for_question(turn.session_id, turn.user_message_id, ask.history_limit, ask.max_history_tokens)
        release()
        reply = listen(run, prompt, setting.provider(), ask)
        outcome = patiently(lambda: turn.complete(reply, ask.mode, run.question))
    except StorageError as error:
        outcome = _record_failure(turn, run, why(error), turn.fail)
    except Exception as error:
        outcome = _record_failure(turn, run, why(error), lambda *end: patiently(lambda: turn.fail(*end)))
    if outcome.recorded:
        worker().forget(run.turn_id)
    return run.finish(outcome)


def answer_later(turn: Turn, run: Run, ask: Ask) -> None:
    worker().later(lambda: answer(turn, run, ask))


def listen(run: Run, prompt: Prompt, provider: Provider, ask: Ask) -> Reply:
    began, model, usage = time.monotonic(), provider.model, None
    rested, rested_at = began, 0
    try:
        for delta in provider.stream(prompt.messages, Options(ask.temperature, ask.max_tokens, run.cancel)):
            if delta.text:
                run.append(delta.text)
            model, usage = delta.model or model, delta.usage or usage
            if time.monotonic() - rested > BURST_SECONDS:
                worker().rest(len(run.pieces) - rested_at)
                rested, rested_at = time.monotonic(), len(run.pieces)
    except Aborted:
        if run.ending == "timeout":
            raise AdapterError("timeout", "The answer took too long.") from None
    text = run.text
    if not text.strip():
        raise StoppedEmpty() if run.ending else AdapterError("backend", "The model server sent an empty answer.")
    return Reply(text, model, usage, round((time.monotonic() - began) * 1000), run.ending == "stopped")


def why(error: Exception) -> Failure:
    match error:
        case StoppedEmpty():
            return STOPPED
        case AdapterError():
            return Failure("LLM_ERROR", error.message, error.kind)
        case DomainError():
            return Failure(error.code, error.message)
    current_app.logger.error("A turn failed in a way that nobody foresaw.", exc_info=error)
    return Failure("INTERNAL_ERROR", "Something went wrong inside Holdfast; its log says what.")


def _record_failure(turn: Turn, run: Run, failure: Failure, record: Callable[[Failure, str], Outcome]) -> Outcome:
    try:
        return record(failure, run.text)
    except Exception as error:
        current_app.logger.error("Turn %s ended with %s, which could not be recorded: %s", turn.id, failure, error)
        worker().owe(run.turn_id, lambda: turn.fail(failure, run.text))
        return Outcome(turn.id, "failed", failure=UNRECORDED, partial=run.text or None, recorded=False)


def patiently(step: Callable[[], Done]) -> Done:
    """An answer that is there must not be lost to a database that is locked or full for a while."""
    began, pause = time.monotonic(), 0.1
    while True:
        try:
            return step()
        except StorageError as error:
            if time.monotonic() - began > (LOCK_PATIENCE if error.busy else FAULT_PATIENCE):
                raise
        time.sleep(pause)
        pause = min(pause * 2, 2.0)
