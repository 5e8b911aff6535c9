"""What the API tests say and hear: errors in their shape, events of a stream, rows straight from the tables."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

from flask import Flask

from models.base import sqlite_module

SESSIONS = "/api/chat/sessions"
TABLES = ("chat_sessions", "chat_messages", "chat_turns")


def request_id() -> str:
    return str(uuid.uuid4())


def refused(response: Any, status: int, code: str) -> dict[str, Any]:
    """The error has exactly the one shape; gives its `extra`."""
    assert response.status_code == status, response.get_data(as_text=True)
    assert response.mimetype == "application/json"
    assert set(response.json) == {"detail"}
    detail = response.json["detail"]
    assert {"code", "message"} <= set(detail) <= {"code", "message", "extra"}
    assert detail["code"] == code
    assert isinstance(detail["message"], str)
    assert detail["message"].strip()
    assert "Traceback" not in response.get_data(as_text=True)
    extra = detail.get("extra", {})
    assert isinstance(extra, dict)
    return extra


def refused_fields(response: Any) -> list[str]:
    """The names of the fields that a 422 complains about."""
    errors = refused(response, 422, "VALIDATION_ERROR")["errors"]
    assert errors
    for error in errors:
        assert set(error) == {"field", "reason"}
        assert error["reason"].strip()
    return [error["field"] for error in errors]


# Streams


class Event(NamedTuple):
    id: str | None
    data: dict[str, Any]

    @property
    def type(self) -> str:
        return self.data["type"]


class Stream:
    """A stream as a client reads it, event after event; `close()` is the tab that is closed."""

    def __init__(self, response: Any) -> None:
        assert response.status_code == 200, response.get_data(as_text=True)
        assert response.mimetype == "text/event-stream"
        self.response = response
        self.comments: list[str] = []
        self.field_names: set[str] = set()
        self._blocks = self._read_blocks()

    def _read_blocks(self) -> Iterator[str]:
        waiting = b""
        for chunk in self.response.iter_encoded():
            *whole, waiting = (waiting + chunk).split(b"\n\n")
            yield from (block.decode() for block in whole)
        assert waiting == b"", "The stream ended inside an event"

    def __iter__(self) -> Iterator[Event]:
        for block in self._blocks:
            fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
            self.comments += [line for line in block.split("\n") if line.startswith(":")]
            self.field_names |= set(fields)
            if fields:
                yield Event(fields.get("id"), json.loads(fields["data"]))

    def next(self, kind: str) -> Event:
        return next(event for event in self if event.type == kind)

    def rest(self) -> list[Event]:
        return list(self)

    def close(self) -> None:
        self.response.close()


def types(events: list[Event]) -> list[str]:
    """The kinds of events in their order, a run of deltas counted as one."""
    kinds = [event.type for event in events]
    return [kind for place, kind in enumerate(kinds) if kind != "delta" or kinds[place - 1 : place] != ["delta"]]


def deltas(events: list[Event]) -> list[tuple[int, str]]:
    return [(event.data["seq"], event.data["delta"]) for event in events if event.type == "delta"]


def text_of(events: list[Event]) -> str:
    return "".join(text for _, text in deltas(events))


def final(events: list[Event]) -> dict[str, Any]:
    assert events[-1].type == "final"
    return events[-1].data["response"]


# Rows


def execute(app: Flask, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """Straight on the database file, as another program would."""
    with closing(sqlite_module.connect(str(app.config["HOLDFAST"].database_file), isolation_level=None)) as connection:
        return connection.execute(sql, values).fetchall()


def execute_many(app: Flask, sql: str, rows: list[tuple[Any, ...]]) -> None:
    with closing(sqlite_module.connect(str(app.config["HOLDFAST"].database_file))) as connection, connection:
        connection.executemany(sql, rows)


def everything_in(app: Flask) -> list[Any]:
    """All rows of the frozen tables, to see whether anything was written."""
    return [execute(app, f"SELECT * FROM {table} ORDER BY id") for table in TABLES]


def add_session(app: Flask, title: str = "New Chat", moment: str = "2026-01-01T00:00:00.000Z") -> str:
    session_id = request_id()
    execute(
        app,
        "INSERT INTO chat_sessions (id, title, created_at, updated_at) VALUES (?, ?, ?, ?)",
        *(session_id, title, moment, moment),
    )
    return session_id


def add_message(
    app: Flask, session_id: str, role: str, content: str, moment: str, tokens: int | None = None, **metadata: Any
) -> str:
    message_id = request_id()
    execute(
        app,
        "INSERT INTO chat_messages (id, session_id, role, content, created_at, token_count, metadata_json) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        *(message_id, session_id, role, content, moment, tokens, json.dumps(metadata) if metadata else None),
    )
    return message_id


# Waiting


def at_once(*tasks: Callable[[], Any]) -> list[Any]:
    """Runs the tasks in threads that start together; gives their results in order."""
    barrier = threading.Barrier(len(tasks))
    results: list[Any] = [None] * len(tasks)

    def run(place: int, task: Callable[[], Any]) -> None:
        barrier.wait(10)
        results[place] = task()

    threads = [threading.Thread(target=run, args=entry, daemon=True) for entry in enumerate(tasks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return results


def wait_for(condition: Callable[[], Any], timeout: float = 10.0) -> Any:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError("It did not happen in time.")
