"""Fills a database with chats, straight into the tables; the triggers and the indexer do the rest as for any writer."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import Connection

from app import create_app
from config import Config
from models import search
from models.base import db, new_id, stamp, transaction

ENGLISH = (
    "server restart contract invoice delivery meeting budget review patch release customer ticket weather train "
    "machine "
    "holiday printer network backup archive report chapter garden kitchen bicycle mountain river letter number"
).split()
CHINESE = "重新启动服务器合同发票交货会议预算审查补丁发布客户工单天气火车机器假期打印机网络备份归档报告"
RARE = "xylograph"
COMMON = "server"
START = datetime(2026, 1, 1, tzinfo=UTC)


def fill(data_dir: Path, chats: int, messages_each: int, long_chat: int = 2000) -> str:
    """Gives the id of the long chat. The rare word stands in five messages, the common one in every other."""
    app = create_app(replace(Config(), data_dir=data_dir, sqlite_synchronous="NORMAL"))
    chosen = random.Random(20261118)  # the same texts in every run
    with app.app_context():
        with transaction() as session:
            connection = session.connection()
            long_id = _insert(connection, chosen, 0, long_chat, chats)
            for place in range(1, chats):
                _insert(connection, chosen, place, messages_each, chats)
        while search.index_pending(2000):
            pass
        with transaction() as session:
            session.connection().exec_driver_sql("ANALYZE")
        db.engine.dispose()
    return long_id


def _insert(connection: Connection, chosen: random.Random, place: int, length: int, chats: int) -> str:
    chat_id = new_id()
    moment = START + timedelta(minutes=place)
    title = " ".join(chosen.choices(ENGLISH, k=4))
    connection.exec_driver_sql(
        "INSERT INTO chat_sessions (id, title, created_at, updated_at) VALUES (?, ?, ?, ?)",
        (chat_id, title, stamp(moment), stamp(moment)),
    )
    rows = []
    for number in range(length):
        text = _text(chosen)
        if number == 0 and place % max(chats // 5, 1) == 1:
            text += f" {RARE}"
        when = stamp(moment + timedelta(milliseconds=number))
        rows.append((new_id(), chat_id, "user" if number % 2 == 0 else "assistant", text, len(text) // 4, when))
    connection.exec_driver_sql(
        "INSERT INTO chat_messages (id, session_id, role, content, token_count, created_at) VALUES (?, ?, ?, ?, ?, ?)",
        rows,
    )
    return chat_id


def _text(chosen: random.Random) -> str:
    words = chosen.choices(ENGLISH, k=chosen.randint(8, 40))
    if chosen.random() < 0.5:
        words.append(COMMON)
    start = chosen.randrange(len(CHINESE) - 8)
    return " ".join(words) + "，" + CHINESE[start : start + chosen.randint(4, 8)] + "。"
