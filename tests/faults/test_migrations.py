"""Databases of older and newer programs, half-finished updates, and several starts at once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from models import schema
from models.base import sqlite_module
from tests.faults.client import Client, in_background
from tests.faults.ledger import Ledger
from tests.faults.start import refused_start
from tests.server import Server

# As the contract has them, and as an older program made them: without the house's own columns and tables.
FROZEN = """
CREATE TABLE chat_sessions (
    id TEXT PRIMARY KEY, title TEXT NOT NULL DEFAULT 'New Chat', user_id TEXT, created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL, deleted_at TEXT, metadata_json TEXT
);
CREATE INDEX idx_sessions_updated ON chat_sessions (updated_at DESC);
CREATE TABLE chat_messages (
    id TEXT PRIMARY KEY, session_id TEXT NOT NULL REFERENCES chat_sessions (id) ON DELETE CASCADE,
    role TEXT NOT NULL CHECK (role IN ('user', 'assistant', 'system')), content TEXT NOT NULL, token_count INTEGER,
    user_id TEXT, created_at TEXT NOT NULL, metadata_json TEXT
);
CREATE INDEX idx_messages_session ON chat_messages (session_id, created_at DESC);
CREATE TABLE chat_turns (
    id TEXT PRIMARY KEY, session_id TEXT NOT NULL REFERENCES chat_sessions (id) ON DELETE CASCADE,
    payload_hash TEXT NOT NULL, user_message_id TEXT REFERENCES chat_messages (id) ON DELETE SET NULL,
    assistant_message_id TEXT REFERENCES chat_messages (id) ON DELETE SET NULL,
    status TEXT NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'completed', 'failed')), error_detail TEXT,
    created_at TEXT NOT NULL, completed_at TEXT
);
"""
TABLES = ("chat_sessions", "chat_messages", "chat_turns")
LLM_ERROR = {"code": "LLM_ERROR", "message": "no memory"}


def moment(second: int) -> str:
    return f"2025-03-01T10:00:{second:02}.000Z"


@pytest.fixture
def old_database(data_dir: Path) -> Path:
    """Three chats: one answered, with a failed question; one in the Trash; one that was being answered."""
    file = data_dir / "chat.db"
    with closing(sqlite_module.connect(str(file))) as connection:
        connection.executescript(FROZEN)
        for number, (chat, title, deleted) in enumerate(
            [("c1", "Tide tables", None), ("c2", "Old", moment(9)), ("c3", "New Chat", None)]
        ):
            row = (chat, title, None, moment(number), moment(number + 10), deleted, None)
            connection.execute("INSERT INTO chat_sessions VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        for message, chat, role, content, second, metadata in [
            ("q1", "c1", "user", "When is high tide?", 1, None),
            ("a1", "c1", "assistant", "At 潮 six.", 2, json.dumps({"mode": "hybrid", "sources": []})),
            ("q2", "c1", "user", "And tomorrow?", 3, json.dumps({"error": LLM_ERROR})),
            ("q3", "c2", "user", "Hello", 4, None),
            ("a3", "c2", "assistant", "Hello yourself", 5, "{not json"),
            ("q4", "c3", "user", "Are you there?", 6, None),
        ]:
            row = (message, chat, role, content, 5, None, moment(second), metadata)
            connection.execute("INSERT INTO chat_messages VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        for turn, chat, asked, answer, status, detail in [
            ("t1", "c1", "q1", "a1", "completed", None),
            ("t2", "c1", "q2", None, "failed", json.dumps(LLM_ERROR)),
            ("t3", "c2", "q3", "a3", "completed", None),
            ("t4", "c3", "q4", None, "pending", None),
        ]:
            ended = None if status == "pending" else moment(8)
            row = (turn, chat, "hash", asked, answer, status, detail, moment(1), ended)
            connection.execute("INSERT INTO chat_turns VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        connection.commit()
    return file


def frozen_rows(file: Path) -> dict[str, list]:
    """The columns that the contract names; the pending turn and its question are told of separately."""
    columns = {
        "chat_sessions": "id, title, user_id, created_at, updated_at, deleted_at, metadata_json",
        "chat_messages": "id, session_id, role, content, token_count, user_id, created_at, metadata_json",
        "chat_turns": "id, session_id, payload_hash, user_message_id, assistant_message_id, status, error_detail",
    }
    with closing(sqlite_module.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        return {
            table: connection.execute(
                f"SELECT {columns[table]} FROM {table} WHERE id NOT IN ('t4', 'q4') ORDER BY id"
            ).fetchall()
            for table in TABLES
        }


def dump(file: Path) -> list:
    """What is declared, and every row."""
    with closing(sqlite_module.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        found = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
        names = [name for name, sql in found if (sql or "").startswith("CREATE TABLE")]
        return [found, *(connection.execute(f"SELECT * FROM {name}").fetchall() for name in names)]


def copies(file: Path) -> list[Path]:
    return sorted(file.parent.glob("chat.db.before-*[0-9]"))


def test_the_database_of_an_older_program_is_taken_over(serve, old_database, ledger):
    before = frozen_rows(old_database)
    client = serve()
    assert frozen_rows(old_database) == before

    listed = client.server.get("/api/chat/sessions").json()["sessions"]
    assert {row["id"]: (row["message_count"], row["last_message_preview"]) for row in listed} == {
        "c1": (2, "At 潮 six."),
        "c3": (0, None),
    }
    assert [message["content"] for message in client.messages("c1")] == [
        "When is high tide?",
        "At 潮 six.",
        "And tomorrow?",
    ]
    assert client.turn("t1")["assistant_message"]["content"] == "At 潮 six."
    assert client.turn("t2")["error"] == LLM_ERROR
    found = client.server.get("/api/chat/search", params={"q": "high tide"}).json()["sessions"]
    assert [row["id"] for row in found] == ["c1"]

    asked = client.ask("c1", "!say next")
    assert asked["assistant_message"]["content"] == "next"
    assert client.message_count("c1") == 4
    ledger.check()

    (copy,) = copies(old_database)
    assert frozen_rows(copy) == before
    assert not old_database.with_name("chat.db.migrating").exists()


def test_a_turn_that_the_older_program_left_running_is_interrupted(serve, old_database, ledger):
    client = serve()
    turn = client.turn("t4")
    assert (turn["status"], turn["error"]["code"]) == ("failed", "INTERRUPTED")
    assert turn["user_message"]["metadata"]["error"] == turn["error"]
    assert client.message_count("c3") == 0
    assert client.ask("c3", "!say yes")["status"] == "completed"
    ledger.check()


def test_started_again_nothing_is_migrated_or_copied_again(serve, old_database):
    serve().server.kill()
    serve().server.kill()
    assert len(copies(old_database)) == 1


def test_an_older_database_that_is_refused_keeps_its_bytes(serve, data_dir, old_database):
    """A migration that fails in its middle changes nothing, and the next start says what to do."""
    with closing(sqlite_module.connect(str(old_database))) as connection:
        connection.execute("CREATE TABLE turn_pieces (other INTEGER)")  # in the way of the house's own table
    before = frozen_rows(old_database)
    code, said = refused_start(data_dir)
    assert code != 0
    assert frozen_rows(old_database) == before
    code, said = refused_start(data_dir)
    assert code == 4
    assert "cut short" in said
    assert frozen_rows(old_database) == before


def test_a_newer_database_is_refused(serve, data_dir, ledger):
    serve().server.kill()
    with closing(sqlite_module.connect(str(ledger.file))) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    before = dump(ledger.file)
    code, said = refused_start(data_dir)
    assert code == 4
    assert f"{ledger.file} was written by a newer Holdfast" in said
    assert "9999" in said
    assert schema.head() in said
    assert "Install that version or a later one" in said
    assert "Traceback" not in said
    assert dump(ledger.file) == before


KILLED_IN_MIGRATION = """
import os, signal, sys
sys.path.insert(0, os.getcwd())
from alembic import command
import server
upgrade = command.upgrade
def cut_short(*arguments):
    upgrade(*arguments)
    os.killpg(os.getpgrp(), signal.SIGKILL)
command.upgrade = cut_short
server.main()
"""


def test_an_update_that_was_cut_short_says_how_to_go_on_and_that_works(serve, data_dir, old_database, ledger):
    before = frozen_rows(old_database)
    environment = {"DATA_DIR": str(data_dir), "PORT": "0"}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_IN_MIGRATION], env=environment, start_new_session=True, timeout=30
    )
    assert killed.returncode == -9

    code, said = refused_start(data_dir)
    assert code == 4
    assert "cut short" in said
    assert "Traceback" not in said
    commands = re.findall(r"^    (\S.*)$", said, re.MULTILINE)
    assert commands
    for line in commands:
        subprocess.run(line, shell=True, check=True)

    client = serve()
    assert frozen_rows(old_database) == before
    assert client.turn("t1")["status"] == "completed"
    assert client.ask("c1", "!say next")["status"] == "completed"
    ledger.check_file()


def test_two_starts_at_once_on_an_empty_directory(serve, data_dir, ledger):
    starts = [in_background(serve) for _ in range(3)]
    clients = [start.result(40) for start in starts]
    chat = clients[0].new_chat()
    for client in clients:
        assert client.ask(chat, "!say here")["status"] == "completed"
    assert clients[0].message_count(chat) == 6
    assert copies(data_dir / "chat.db") == []
    ledger.check()


def test_two_starts_at_once_on_an_older_database(serve, old_database, ledger):
    clients = [start.result(40) for start in [in_background(serve) for _ in range(2)]]
    for client in clients:
        assert client.ask("c1", "!say here")["status"] == "completed"
    assert len(copies(old_database)) == 1
    ledger.check_file()


def test_several_worker_processes_under_one_master(data_dir):
    with Server(data_dir, WORKERS=2) as server:
        client = Client(server)
        server.wait_for(lambda: len([line for line in server.output if "serving on" in line]) == 2)
        assert client.ask(client.new_chat(), "Hello")["status"] == "completed"
    Ledger(data_dir).check()
