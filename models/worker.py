"""Worker: this process's part in the work. Who it is, the answers it is writing, and the beat that keeps them alive."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

from flask import Flask, current_app
from sqlalchemy import ForeignKey, insert, select, update
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base, config, db, insert_row, new_id, now, stamp, table_of, transaction
from models.errors import DomainError, TooBusy
from models.message import Message
from models.run import Run

BEAT_SECONDS = 0.3
CHORES_EVERY = 4


class TurnRun(Base):
    """Who is writing an answer and until when that is believed; and what is left of an answer that failed."""

    __tablename__ = "turn_runs"

    turn_id: Mapped[str] = mapped_column(ForeignKey("chat_turns.id"), primary_key=True)
    worker: Mapped[str]
    lease_until: Mapped[str]
    stop_requested_at: Mapped[str | None]
    partial: Mapped[str | None]


class TurnPieces(Base):
    """The growing answer: a JSON list of its pieces, numbered from `seq`."""

    __tablename__ = "turn_pieces"

    turn_id: Mapped[str] = mapped_column(ForeignKey("turn_runs.turn_id"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    texts: Mapped[str]


def worker() -> Worker:
    return cast(Worker, current_app.extensions["worker"])


class Worker:
    def __init__(self, app: Flask, folder: Path) -> None:
        self.id = new_id()
        self._app = app
        self._folder = folder
        self._runs: dict[str, Run] = {}
        self._renewed = 0.0
        self._lag = 0.0
        self._owed: dict[str, Callable[[], object]] = {}
        self.now_and_then: list[Callable[[], object]] = [self._pay]  # chores, done about once a second
        folder.mkdir(parents=True, exist_ok=True)
        self._file = self._sign_in()

    # Being alive is holding a lock on a file of one's own: it ends with the process, however that ends.

    def _sign_in(self) -> int:
        """The file gets its name when it is locked already: nobody ever finds it free while we live."""
        for other in self._folder.glob("*.lock"):
            self._is_alive(other.stem)
        arriving = self._folder / f"{self.id}.new"
        file = os.open(arriving, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        arriving.rename(self._folder / f"{self.id}.lock")
        return file

    def _is_alive(self, other: str) -> bool:
        try:
            file = os.open(self._folder / f"{other}.lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
        with suppress(FileNotFoundError):
            (self._folder / f"{other}.lock").unlink()
        return False

    # The answers being written here.

    def require_room(self) -> None:
        if len(self._runs) >= config().max_running_turns:
            raise TooBusy(retry_after=2)

    def start(self, turn_id: str, question: Message) -> Run:
        """Inside the transaction that claims the turn, so that nobody ever sees it claimed and not running."""
        insert_row(TurnRun(turn_id=turn_id, worker=self.id, lease_until=self._lease_end()))
        run = self._runs[turn_id] = Run(turn_id, question, config().llm_total_timeout)
        return run

    def owe(self, turn_id: str, record: Callable[[], object]) -> None:
        """An end that could not be recorded: its run stays, with every word, and the beat tries again."""
        self._owed[turn_id] = record

    def _pay(self) -> None:
        for turn_id, record in list(self._owed.items()):
            record()
            del self._owed[turn_id]
            self.forget(turn_id)

    def run_of(self, turn_id: str) -> Run | None:
        return self._runs.get(turn_id)

    def forget(self, turn_id: str) -> None:
        self._runs.pop(turn_id, None)

    def rest(self, pieces: int) -> None:
        """With many answers at once, lets words gather for a moment: those that arrive together travel together.

        Below a hundred answers nobody waits; at a thousand it is 0.15 seconds, within which a model at five words a
        second says nothing new. A pause that lasts longer than it should shows that there is too much to do: then an
        answer that comes in many `pieces` waits longer and takes more of them with it, until the work fits again.
        """
        if len(self._runs) <= 100:
            return
        pause = len(self._runs) * 0.00015
        if pieces > 2:
            pause = min(pause + 2 * self._lag, 0.6)
        began = time.monotonic()
        time.sleep(pause)
        self._lag += 0.1 * (time.monotonic() - began - pause - self._lag)

    def has_lost(self, turn_id: str) -> bool:
        """A pending turn that nobody writes any more: its process is gone, or has been silent for too long."""
        if turn_id in self._runs:
            return False
        lease = db.session.get(TurnRun, turn_id, populate_existing=True)
        if lease is None or lease.worker == self.id or lease.lease_until < now():
            return True
        return not self._is_alive(lease.worker)

    def _lease_end(self) -> str:
        return stamp(datetime.now(UTC) + timedelta(seconds=config().turn_lease_seconds))

    # Working in the background.

    def later(self, task: Callable[[], object]) -> None:
        """Runs a task in a thread of its own, with the app around it and a database session of its own."""

        def work() -> None:
            with self._app.app_context():
                task()

        threading.Thread(target=work, daemon=True).start()

    def start_beating(self) -> None:
        threading.Thread(target=self._beat_for_ever, name="beat", daemon=True).start()

    def _beat_for_ever(self) -> None:
        for count in itertools.count():
            time.sleep(BEAT_SECONDS)
            with self._app.app_context():
                self._do([self._keep_runs, *([] if count % CHORES_EVERY else self.now_and_then)])

    def _do(self, steps: list[Callable[[], object]]) -> None:
        for step in steps:
            try:
                step()
            except DomainError as error:
                self._app.logger.warning("The beat could not %s: %s", getattr(step, "__name__", step), error)
            except Exception:
                self._app.logger.exception("The beat stumbled.")

    def _keep_runs(self) -> None:
        """For all answers being written here together: save what is new, renew the leases, hear who wants to stop."""
        runs = list(self._runs.values())
        fresh = {run: run.pieces[run.saved :] for run in runs if len(run.pieces) > run.saved}
        renew = time.monotonic() - self._renewed > config().turn_lease_seconds / 6
        for run in runs:
            run.check_deadline()
        if fresh or (runs and renew):
            self._save(runs, fresh, renew)
        if runs:
            self._hear_stops()

    def _save(self, runs: list[Run], fresh: dict[Run, list[str]], renew: bool) -> None:
        with transaction() as session:
            leased = set(session.scalars(select(TurnRun.turn_id).where(TurnRun.worker == self.id)))
            rows = [
                {"turn_id": run.turn_id, "seq": run.saved + 1, "texts": json.dumps(texts, ensure_ascii=False)}
                for run, texts in fresh.items()
                if run.turn_id in leased
            ]
            if rows:
                session.execute(insert(table_of(TurnPieces)), rows)
            if renew:
                session.execute(update(TurnRun).where(TurnRun.worker == self.id).values(lease_until=self._lease_end()))
                self._renewed = time.monotonic()
        for run in runs:
            run.saved += len(fresh.get(run, []))
            if run.turn_id not in leased:
                run.stop()  # its chat was deleted, or we slept and another process took it over: hang up on the model

    def _hear_stops(self) -> None:
        asked = select(TurnRun.turn_id).where(TurnRun.worker == self.id, TurnRun.stop_requested_at.is_not(None))
        for turn_id in db.session.scalars(asked).all():
            if turn_id in self._runs:
                self._runs[turn_id].stop()
