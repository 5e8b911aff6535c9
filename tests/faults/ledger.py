"""Reads the database file beside the server and says what does not add up in it."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from models.base import sqlite_module

COUNTED = "CASE WHEN json_valid(metadata_json) THEN json_extract(metadata_json, '$.error') IS NULL ELSE 1 END"


class Ledger:
    def __init__(self, data_dir: Path) -> None:
        self.file = data_dir / "chat.db"

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite_module.connect(f"file:{self.file}?mode=ro", uri=True, timeout=10)) as connection:
            return connection.execute(sql, values).fetchall()

    def value(self, sql: str, *values: Any) -> Any:
        found = self.rows(sql, *values)
        return found[0][0] if found else None

    def check_file(self) -> None:
        """What holds at any moment, also right after a power cut."""
        assert self.rows("PRAGMA integrity_check") == [("ok",)]
        assert self.rows("PRAGMA foreign_key_check") == []

    def check(self) -> None:
        """What holds whenever no answer is being written."""
        self.check_file()
        assert self.rows("SELECT id FROM chat_turns WHERE status = 'pending'") == []
        self._check_pairs()
        self._check_failures()
        self._check_order()
        self._check_counts()
        assert self.rows("SELECT turn_id, seq FROM turn_pieces") == [], "pieces of turns that have ended"
        runs = "SELECT turn_id FROM turn_runs JOIN chat_turns ON id = turn_id WHERE status = 'completed'"
        assert self.rows(runs) == [], "runs of turns that are completed"

    def _check_pairs(self) -> None:
        """A completed turn has both messages, and every message has its turn: no half pair."""
        half = """
            SELECT t.id FROM chat_turns t
            LEFT JOIN chat_messages q ON q.id = t.user_message_id AND q.session_id = t.session_id AND q.role = 'user'
            LEFT JOIN chat_messages a ON a.id = t.assistant_message_id AND a.session_id = t.session_id
                AND a.role = 'assistant'
            WHERE t.status = 'completed' AND (q.id IS NULL OR a.id IS NULL OR a.created_at <= q.created_at
                OR t.completed_at IS NULL)
        """
        assert self.rows(half) == [], "completed turns without both of their messages"
        turns = self.rows("SELECT user_message_id, assistant_message_id FROM chat_turns WHERE status = 'completed'")
        owned = {id for pair in turns for id in pair}
        said = {id for (id,) in self.rows(f"SELECT id FROM chat_messages WHERE {COUNTED}")}
        assert said == owned, "messages without a completed turn, or the reverse"

    def _check_failures(self) -> None:
        """A failed turn says why, and marks its question, unless that had been answered before (a retry)."""
        failed = self.rows(
            "SELECT t.id, t.error_detail, t.completed_at, t.assistant_message_id, q.metadata_json FROM chat_turns t "
            "LEFT JOIN chat_messages q ON q.id = t.user_message_id WHERE t.status = 'failed'"
        )
        for turn, detail, ended_at, answer, metadata in failed:
            why = json.loads(detail)
            assert why["code"], turn
            assert why["message"], turn
            assert ended_at, turn
            assert (json.loads(metadata or "{}").get("error") == why) is (answer is None), (turn, metadata)

    def _check_order(self) -> None:
        for (chat,) in self.rows("SELECT id FROM chat_sessions"):
            times = [row[0] for row in self.rows("SELECT created_at FROM chat_messages WHERE session_id = ?", chat)]
            assert [time for time, count in Counter(times).items() if count > 1] == [], chat

    def _check_counts(self) -> None:
        counted = dict(self.rows(f"SELECT session_id, count(*) FROM chat_messages WHERE {COUNTED} GROUP BY session_id"))
        told = dict(self.rows("SELECT chat_id, message_count FROM chat_summaries WHERE message_count <> 0"))
        assert told == counted
