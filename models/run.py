"""Run (plain): an answer while it is being written, in the memory of the process that writes it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from adapters.values import Cancel

if TYPE_CHECKING:
    from models.message import Message
    from models.outcome import Outcome

Piece = tuple[int, str]
"""Its number, counted from 1, and its text. Every listener gets the same pieces under the same numbers."""

IDLE_SECONDS = 15.0


class Run:
    def __init__(self, turn_id: str, question: Message, time_limit: float) -> None:
        self.turn_id = turn_id
        self.question = question
        self.cancel = Cancel()
        self.pieces: list[str] = []
        self.outcome: Outcome | None = None
        self.ending: Literal["stopped", "timeout"] | None = None
        self.saved = 0  # pieces that are in the database already; the worker's beat moves it
        self._deadline = time.monotonic() + time_limit
        self._news = threading.Condition(threading.Lock())

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def append(self, text: str) -> None:
        with self._news:
            self.pieces.append(text)
            self._news.notify_all()

    def finish(self, outcome: Outcome) -> Outcome:
        with self._news:
            self.outcome = outcome
            self._news.notify_all()
        return outcome

    def stop(self) -> None:
        self._end("stopped")

    def check_deadline(self) -> None:
        if time.monotonic() > self._deadline:
            self._end("timeout")

    def _end(self, reason: Literal["stopped", "timeout"]) -> None:
        self.ending = self.ending or reason
        self.cancel.abort()

    def wait(self, timeout: float) -> Outcome | None:
        with self._news:
            self._news.wait_for(lambda: self.outcome is not None, timeout)
            return self.outcome

    def watch(self, after: int = 0) -> Iterator[list[Piece]]:
        """What has come since, again and again until the end; an empty list now and then while nothing comes."""
        seen = after
        while True:
            with self._news:
                if len(self.pieces) <= seen and self.outcome is None:
                    self._news.wait(IDLE_SECONDS)
                fresh, ended = self.pieces[seen:], self.outcome is not None
            if fresh or not ended:
                yield list(enumerate(fresh, seen + 1))
            if ended:
                return
            seen += len(fresh)
