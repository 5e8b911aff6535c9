"""The ground that the tables stand on: the engine and its pragmas, one writer at a time, ids and times."""

from __future__ import annotations

import fcntl
import functools
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from flask import Flask, current_app
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Connection, CursorResult, Engine, Executable, Insert, Table, event
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import DeclarativeBase, Session

from config import Config
from models.errors import StorageError

try:
    import pysqlite3 as sqlite
except ImportError:  # no wheel for this platform: the standard library's SQLite serves, and `flask doctor` says so
    import sqlite3 as sqlite

sqlite_module: ModuleType = sqlite


class Base(DeclarativeBase):
    pass


class Aside:
    """Runs what blocks for a while. The server, where all requests share one thread, puts a pool of threads here."""

    run: Callable[[Callable[[], Any]], Any] = staticmethod(lambda task: task())


class SQLiteConnection(sqlite.Connection):
    """Waits for the disk aside: the commit of one must not hold up the streams of all others."""

    writes = False

    def commit(self) -> None:
        if self.writes:
            self.writes = False
            Aside.run(super().commit)
        else:
            super().commit()


db = SQLAlchemy(model_class=Base, session_options={"expire_on_commit": False})


def config() -> Config:
    return cast(Config, current_app.config["HOLDFAST"])


def now() -> str:
    """ISO-8601, UTC, milliseconds and Z: it sorts as text."""
    return stamp(datetime.now(UTC))


def stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def later_than(previous: str | None) -> str:
    """Now, but always after `previous`: equal milliseconds and a clock set back must not reorder anything."""
    current = now()
    if previous is None or previous < current:
        return current
    moment = datetime.fromisoformat(previous).timestamp() + 0.001
    return stamp(datetime.fromtimestamp(round(moment, 3), UTC))


def as_object(text: str | None) -> dict[str, Any]:
    """Metadata as it is kept, a JSON object as text; what another program wrote there may be anything."""
    try:
        value = json.loads(text) if text else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def new_id() -> str:
    """A version 7 UUID: rows written together lie together in every index that starts with an id."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds & (1 << 48) - 1) << 80 | int.from_bytes(os.urandom(10))
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))


class WriterLock:
    """One writer at a time per database file, over all threads and all processes.

    SQLite itself lets one in at a time, but by sleeping and trying again, which is slow and unfair under load;
    and before 3.51.3 a write beside a checkpoint can corrupt a WAL file. A queue before its door avoids both.
    """

    def __init__(self, path: Path, timeout: float) -> None:
        self._threads = threading.Lock()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._timeout = timeout

    @contextmanager
    def held(self) -> Iterator[None]:
        deadline = time.monotonic() + self._timeout
        if not self._threads.acquire(timeout=self._timeout):
            raise StorageError(busy=True)
        try:
            self._lock_file(deadline)
            time.sleep(0)  # where all share one thread: let streams go on between two writers of a long queue
            try:
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def _lock_file(self, deadline: float) -> None:
        pause = 0.0005
        while True:
            try:
                return fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StorageError(busy=True) from None
            time.sleep(pause)
            pause = min(pause * 2, 0.01)


def init_database(app: Flask, settings: Config) -> None:
    file = settings.database_file
    app.config["SQLALCHEMY_DATABASE_URI"] = f"sqlite:///{file}"
    app.config["SQLALCHEMY_ENGINE_OPTIONS"] = {
        "module": sqlite_module,
        "connect_args": {
            "check_same_thread": False,
            "timeout": settings.busy_timeout_ms / 1000,
            "factory": SQLiteConnection,
        },
        # Sessions are short, so a few connections serve a thousand threads; each costs memory for its cache.
        "pool_size": 12,
        "max_overflow": 0,
        "pool_timeout": max(settings.busy_timeout_ms / 1000, 1),
    }
    db.init_app(app)
    app.extensions["writer_lock"] = WriterLock(file.with_name(file.name + ".lock"), settings.busy_timeout_ms / 1000)
    with app.app_context():
        _prepare(db.engine, settings)


def _prepare(engine: Engine, settings: Config) -> None:
    """Everything SQLite needs to be told on a connection; another database needs none of it."""

    @event.listens_for(engine, "connect")
    def pragmas(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the driver must not begin transactions of its own; `begin` below does
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={settings.busy_timeout_ms}")
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute(f"PRAGMA synchronous={settings.sqlite_synchronous}")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A read that turns into a write fails at once with "database is locked", whatever the timeout.
        if connection.get_execution_options().get("writes", False):
            _begin_write(cast(SQLiteConnection, connection.connection.driver_connection), settings.busy_timeout_ms)
        else:
            connection.exec_driver_sql("BEGIN")


def _begin_write(connection: SQLiteConnection, timeout_ms: int) -> None:
    """Waits here, not inside SQLite: its own waiting would hold up every other request of this process."""
    deadline = time.monotonic() + timeout_ms / 1000
    connection.execute("PRAGMA busy_timeout=0")
    try:
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.writes = True
                return
            except sqlite.OperationalError as error:
                if not is_busy(error) or time.monotonic() > deadline:
                    raise StorageError(busy=is_busy(error)) from error
            time.sleep(0.02)
    finally:
        connection.execute(f"PRAGMA busy_timeout={timeout_ms}")


@contextmanager
def transaction() -> Iterator[Session]:
    """One short write, all or nothing. A verb called inside another's transaction joins it."""
    session = db.session()
    if session.info.get("writing"):
        yield session
        return
    session.commit()  # gives back the connection of a read before this: waiting for the lock must not hold one
    session.expire_all()  # what was read before may have changed while we waited; a write decides on what is there
    with current_app.extensions["writer_lock"].held():
        session.info["writing"] = True
        try:
            session.connection(execution_options={"writes": True})
            yield session
            session.commit()
        except DBAPIError as error:
            session.rollback()
            raise as_storage_error(error) from error
        except BaseException:
            session.rollback()
            raise
        finally:
            session.info["writing"] = False


def table_of(model: type[Base]) -> Table:
    return cast(Table, model.__table__)


def run_statement(statement: Executable, **values: Any) -> CursorResult[Any]:
    """A statement that was built once, without the session's bookkeeping: for what lies on the way of every turn."""
    return cast(CursorResult[Any], db.session.connection().execute(statement, values))


def insert_row(row: Base) -> None:
    """Writes a new row at once, in the same spirit."""
    statement, names = _insert_into(type(row))
    run_statement(statement, **{name: getattr(row, name) for name in names})


@functools.cache
def _insert_into(model: type[Base]) -> tuple[Insert, list[str]]:
    return table_of(model).insert(), [column.key for column in table_of(model).columns]


def check_writable() -> None:
    """Writes something that nobody reads: beginning a write succeeds on a full or read-only disk too."""
    with transaction() as session:
        session.connection().exec_driver_sql("PRAGMA user_version=0")


def release() -> None:
    """Gives the connection back before anything slow: no session is held over a model call, a stream or file work."""
    db.session.commit()


def as_storage_error(error: DBAPIError) -> Exception:
    """What the driver said, as the domain says it; a broken rule of the tables stays what it is: its verb knows why."""
    if isinstance(error, IntegrityError):
        return error
    return StorageError(busy=error.orig is not None and is_busy(error.orig))


def is_busy(error: BaseException) -> bool:
    return "locked" in str(error) or "busy" in str(error)
