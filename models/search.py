"""Search: finds chats by any piece of their titles and messages, and keeps the index that makes it quick.

The index (FTS5, over grams) only names candidates; whether a text holds what was asked is decided by reading it. So
nothing is found wrongly, whatever the index says, and nothing is missed: a text that still waits for the index is read
as well. The triggers of migration 0002 keep `search_entries`, where every text has its place in the order of finding.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from markupsafe import Markup
from sqlalchemy import CursorResult, text

from models.base import db, release, transaction
from models.chat import Chat, ChatRow
from models.errors import InvalidCursor
from models.ngrams import fold, grams, snippet, windows
from models.paging import Page, decode_cursor, encode_cursor

MOST_MATCHES = 5
FIRST_LOOK, WIDEST_LOOK = 100, 1600
LOOK_ON = 300  # candidates still looked at for the matches of a page that is full
BATCH_GRAMS = 25_000  # what FTS5 takes in about 7 ms: a batch must not keep other writers waiting
MERGE_PAGES = 64
TOP = 2**63 - 1
HALF_CHARACTER = re.compile("[\ud800-\udfff]")  # no text in the database can hold one

CANDIDATES = """
SELECT id, chat_id FROM (
    SELECT e.id, e.chat_id FROM search_index i CROSS JOIN search_entries e ON e.id = i.rowid
        CROSS JOIN chat_sessions c ON c.id = e.chat_id
        WHERE i.search_index MATCH :match AND i.rowid < :below AND i.rowid >= :above AND c.deleted_at IS NULL
        ORDER BY i.rowid DESC LIMIT :size)
UNION
SELECT id, chat_id FROM (
    SELECT e.id, e.chat_id FROM search_entries e INDEXED BY ix_search_entries_pending
        CROSS JOIN chat_sessions c ON c.id = e.chat_id
        WHERE e.pending = 1 AND e.id < :below AND e.id >= :above AND c.deleted_at IS NULL
            AND (:chat_id IS NULL OR e.chat_id = :chat_id)
        ORDER BY e.id DESC LIMIT :size)
ORDER BY id DESC LIMIT :size
"""
# In the order of the ids. As bytes: what another program wrote may be no UTF-8, and that must not end every search.
TEXTS = """
SELECT e.id, e.chat_id, e.message_id, m.role, m.created_at,
    (SELECT max(id) FROM search_entries WHERE chat_id = e.chat_id) AS newest,
    CAST(coalesce(CASE WHEN e.message_id IS NULL THEN c.title ELSE m.content END, '') AS BLOB) AS content
    FROM json_each(:ids) CROSS JOIN search_entries e ON e.id = value
    LEFT JOIN chat_sessions c ON c.id = e.chat_id LEFT JOIN chat_messages m ON m.id = e.message_id
"""
STILL_WAITING = "SELECT id FROM search_entries WHERE pending = 1 AND id IN (SELECT value FROM json_each(:ids))"
INDEXED = "UPDATE search_entries SET pending = 0 WHERE id IN (SELECT value FROM json_each(:ids))"
START_OVER = """
INSERT INTO search_entries (chat_id, message_id)
    SELECT chat_id, message_id FROM (
        SELECT id AS chat_id, NULL AS message_id, updated_at AS moment FROM chat_sessions
        UNION ALL
        SELECT m.session_id, m.id, m.created_at FROM chat_messages m WHERE NOT CASE WHEN json_valid(m.metadata_json)
            THEN json_extract(m.metadata_json, '$.error') IS NOT NULL ELSE 0 END
    ) ORDER BY moment
"""


Place = tuple[int, str]  # an entry's id and its chat
Part = tuple[int, str, bool]  # an entry's id, grams of it, and whether they are its last


class Match(NamedTuple):
    message_id: str
    role: str
    snippet: Markup
    created_at: str


class Found(NamedTuple):
    """A chat, with its newest messages that hold what was asked; none where only the title does."""

    chat: ChatRow
    matches: list[Match]


class Entry(NamedTuple):
    """A title or message as it stands in the order of finding; `newest` is the last place that its chat has there."""

    id: int
    chat_id: str
    message_id: str | None
    role: str
    created_at: str
    newest: int
    text: str


def search(q: str, limit: int, cursor: str | None = None) -> Page[Found]:
    """Chats with every word of `q` in one title or message, by their newest such text."""
    before = _place(cursor) if cursor else TOP
    query = Query(q)
    hits: dict[str, list[Entry]] = {}
    shown: set[str] = set()
    more, patience = False, LOOK_ON
    for looked_at in query.candidates(below=before):
        full = {chat_id for chat_id, entries in hits.items() if len(entries) > MOST_MATCHES} | shown
        wanted = [id for id, chat_id in looked_at if (chat_id in hits or not more) and chat_id not in full]
        for entry in query.hits(wanted):
            if entry.chat_id in hits:
                hits[entry.chat_id].append(entry)
            elif more or entry.chat_id in shown:
                continue
            elif query.shows_before(entry, before):
                shown.add(entry.chat_id)
            elif len(hits) < limit:
                hits[entry.chat_id] = [entry]
            else:
                more = True
        patience -= len(looked_at) if more else 0
        if patience <= 0:
            break
    last = list(hits.values())[-1][0] if more else None
    return Page(_found(hits, query), last and encode_cursor(entry=last.id))


def pending_count() -> int:
    return int(_execute("SELECT count(*) FROM search_entries WHERE pending = 1").scalar_one())


def index_pending(limit: int = 400) -> int:
    """Takes the oldest texts that wait into the index, in short transactions; says how many."""
    ids = [row.id for row in _execute("SELECT id FROM search_entries WHERE pending = 1 ORDER BY id LIMIT :n", n=limit)]
    entries = list(_texts(ids))
    release()
    for batch in _batches(entries):
        with transaction():
            _index(batch)
        with transaction():
            _execute("INSERT INTO search_index (search_index, rank) VALUES ('merge', :pages)", pages=MERGE_PAGES)
    return len(ids)


def catch_up(seconds: float = 0.5) -> None:
    """Works off what waits, for so long at most: a big import takes its time, and leaves time to others."""
    until = time.monotonic() + seconds
    while index_pending() and time.monotonic() < until:
        pass


def rebuild() -> None:
    """Starts over with an empty index: everything waits, and is found by reading until `index_pending` has taken it."""
    with transaction():
        _execute("INSERT INTO search_index (search_index) VALUES ('delete-all')")
        _execute("DELETE FROM search_entries")
        _execute(START_OVER)


class Query:
    """What was asked: terms that must all stand in one text, and the grams by which the index knows such texts."""

    def __init__(self, q: str) -> None:
        self.terms = [] if HALF_CHARACTER.search(q) else list(dict.fromkeys(fold(q).split()))
        self.match = " AND ".join(f'"{gram}"' for gram in windows(self.terms))

    def candidates(self, below: int = TOP, above: int = 0, chat_id: str | None = None) -> Iterator[list[Place]]:
        """Places that may hold the terms, from the newest on: the first few at once, then more and more."""
        match = f'"{_chat_gram(chat_id)}" AND {self.match}' if chat_id else self.match
        size = FIRST_LOOK
        while self.terms:
            rows = _execute(CANDIDATES, match=match, below=below, above=above, chat_id=chat_id, size=size).all()
            yield [(row.id, row.chat_id) for row in rows]
            if len(rows) < size:
                return
            below, size = rows[-1].id, min(size * 2, WIDEST_LOOK)

    def hits(self, ids: list[int]) -> Iterator[Entry]:
        for entry in _texts(ids):
            folded = fold(entry.text)
            if all(term in folded for term in self.terms):
                yield entry

    def shows_before(self, entry: Entry, place: int) -> bool:
        """An earlier page, which ended at `place`, has shown this entry's chat."""
        if entry.newest < place:
            return False
        candidates = self.candidates(above=place, chat_id=entry.chat_id)
        return any(True for looked_at in candidates for _ in self.hits([id for id, _ in looked_at]))


def _found(hits: dict[str, list[Entry]], query: Query) -> list[Found]:
    chats = Chat.rows_of(list(hits))
    return [Found(chats[chat_id], _matches(entries, query)) for chat_id, entries in hits.items()]


def _matches(entries: list[Entry], query: Query) -> list[Match]:
    messages = [entry for entry in entries if entry.message_id][:MOST_MATCHES]
    return [
        Match(entry.message_id or "", entry.role, snippet(entry.text, query.terms), entry.created_at)
        for entry in messages
    ]


def _place(cursor: str) -> int:
    (place,) = decode_cursor(cursor, entry=int)
    if not 0 < place < TOP:
        raise InvalidCursor()
    return int(place)


def _texts(ids: list[int]) -> Iterator[Entry]:
    for row in _execute(TEXTS, ids=json.dumps(ids)) if ids else ():
        yield Entry._make([*row[:-1], row.content.decode("utf-8", "replace")])


def _batches(entries: list[Entry]) -> Iterator[list[Part]]:
    """The texts cut into grams, in batches of one size; a text that is too long for one goes on in the next."""
    batch: list[Part] = []
    room = BATCH_GRAMS
    for entry in entries:
        left = [_chat_gram(entry.chat_id), *grams(entry.text)]
        while left:
            part, left = left[:room], left[room:]
            batch.append((entry.id, " ".join(part), not left))
            room -= len(part)
            if room == 0:
                yield batch
                batch, room = [], BATCH_GRAMS
    if batch:
        yield batch


def _index(batch: list[Part]) -> None:
    """Inside a transaction. What was changed, deleted or indexed by another process since it was read is left out."""
    ids = json.dumps([id for id, _, _ in batch])
    waiting = set(_execute(STILL_WAITING, ids=ids).scalars())
    rows = [{"id": id, "grams": part} for id, part, _ in batch if id in waiting]
    if rows:
        db.session.execute(text("INSERT INTO search_index (rowid, grams) VALUES (:id, :grams)"), rows)
    done = json.dumps([id for id, _, complete in batch if complete])
    _execute(INDEXED, ids=done)


def _chat_gram(chat_id: str) -> str:
    """A word of its own for a chat: longer than any gram, and made of letters whatever the id is."""
    return f"chat{chat_id.encode().hex()}"


def _execute(sql: str, **values: Any) -> CursorResult[Any]:
    return db.session.execute(text(sql), values)  # type: ignore[return-value]
