"""Search: finds every piece of every text and nothing else, newest first, while the index is behind or up to date."""

from __future__ import annotations

import base64
import json
import uuid
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, text

from models import search
from models.base import db, new_id, now, sqlite_module, transaction
from models.chat import Chat
from models.errors import InvalidCursor
from models.message import Message

PIECES = [
    "the ",
    "重跑",
    "gen-itgc",
    "后",
    "C++",
    "it's",
    "🙂",
    "👍🏽",
    "ＡＢＣ",
    "Straße",
    "的",
    "ion",
    "ation",
    "\n",
    "%_",
    '"',
    "，",
    "a",
    "𠮷",
    "İ",
]
texts = st.lists(
    st.sampled_from(PIECES) | st.text(st.characters(exclude_categories=["Cs"]), max_size=3), max_size=12
).map("".join)

HOSTILE = [
    *"\"'*-;{()}\\%_\x00\uffff\ud800",
    '""',
    '"z',
    "a\x00b",
    "AND",
    "OR NOT",
    "NEAR(",
    "z*",
    "^z",
    "--",
    "grams:z",
    "z\udfffb",
]
HOSTILE += ["x" * 100_000, "字" * 100_000, "a b " * 50_000, " ".join(map(chr, range(33, 20_000)))]
COPY = "SELECT :id, session_id, role, :content, 1, NULL, created_at, :details FROM chat_messages LIMIT 1"


def say(chat_id: str, content: str, role: str = "user") -> None:
    with transaction() as session:
        session.add(Message(id=new_id(), session_id=chat_id, role=role, content=content, created_at=now()))
        session.flush()


def chat_with(*contents: str, title: str = "~") -> str:
    with transaction():
        chat = Chat.create(title)
        for content in contents:
            say(chat.id, content)
    return chat.id


def message_id() -> str:
    return db.session.scalars(select(Message.id)).one()


def index() -> None:
    while search.index_pending():
        pass


def sql(statement: str, **values: object) -> None:
    with transaction() as session:
        session.execute(text(statement), values)


def found(q: str, limit: int = 20) -> list[search.Found]:
    """All pages, one after the other."""
    rows: list[search.Found] = []
    cursor = None
    while True:
        page = search.search(q, limit, cursor)
        assert len(page.rows) <= limit
        assert page.rows or not cursor, "a page that was promised must hold something"
        rows += page.rows
        cursor = page.next_cursor
        if cursor is None:
            return rows


def ids(q: str, limit: int = 20) -> list[str]:
    return [row.chat.id for row in found(q, limit)]


@pytest.fixture(params=["indexed", "waiting"])
def settle(request):
    """Every behaviour holds for texts in the index and for texts that still wait for it."""
    return index if request.param == "indexed" else lambda: None


# What is found


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contents=st.lists(texts, min_size=1, max_size=6), data=st.data())
def test_exactly_what_holds_it_is_found_whatever_piece_is_asked(app, contents, data):
    sql("DELETE FROM chat_sessions")
    chats = {chat_with(content): content for content in contents}
    if data.draw(st.booleans(), "indexed"):
        index()
    source = data.draw(st.sampled_from(contents))
    start = data.draw(st.integers(0, len(source)))
    q = source[start : data.draw(st.integers(start, len(source)))]
    answer = ids(q, limit=data.draw(st.integers(1, 4)))
    assert len(answer) == len(set(answer))
    if not q.strip():
        assert answer == []
        return
    like = "SELECT session_id FROM chat_messages WHERE content LIKE '%' || :q || '%' ESCAPE char(1)"
    if not set(q) & set("%_\x00\x01"):
        assert set(db.session.execute(text(like), {"q": q}).scalars()) <= set(answer)
    assert set(answer) == {chat for chat, content in chats.items() if holds(content, q) or holds("~", q)}


def holds(content: str, q: str) -> bool:
    """The same question asked the plain way; only letters that differ in case or width count as the same."""
    wide = {place: place - 0xFEE0 for place in range(0xFF01, 0xFF5F)}
    return all(word in content.translate(wide).casefold() for word in q.translate(wide).casefold().split())


@pytest.mark.parametrize(
    ("content", "q"),
    [
        ("昨天重跑gen-itgc后失败", "重跑gen-itgc后"),
        ("昨天重跑gen-itgc后失败", "gen"),
        ("昨天重跑gen-itgc后失败", "跑"),
        ("昨天重跑gen-itgc后失败", "C后"),
        ("Use C++ or C# here", "C++"),
        ("Use C++ or C# here", "c#"),
        ("because it's late", "it's"),
        ("because it's late", "'"),
        ("an internationalisation", "nationali"),
        ("fine 👍🏽 then 👨‍👩‍👧", "👍"),
        ("fine 👍🏽 then 👨‍👩‍👧", "👩"),
        ("rare 𠮷 here", "𠮷"),
        ("FULL ＷＩＤＴＨ", "width"),
        ("100 %", "%"),
        ("under_score", "r_s"),
        ("one line\nand another", "line another"),
        ("one line\nand another", "  another\tline  "),
        ("NEAR(a b, 2) AND NOT x* OR y^", "NEAR(a b, 2) AND NOT x* OR y^"),
        ("a\x01b", "a\x01b"),
        ("a\x01b", "\x01"),
    ],
)
def test_any_piece_is_found(app, settle, content, q):
    chat = chat_with(content)
    chat_with("something else")
    settle()
    assert ids(q) == [chat]


@pytest.mark.parametrize("q", ["", " ", "\n\t\u3000", "\x1c"])
def test_nothing_asked_is_nothing_found(app, q):
    chat_with("a \x1c b")
    assert search.search(q, 20).rows == []


@pytest.mark.parametrize("q", HOSTILE, ids=lambda q: ascii(q)[:12])
def test_no_input_is_an_error(app, settle, q):
    chat_with("plain text", "另一个")
    settle()
    assert search.search(q, 20).rows == []


def test_a_question_of_any_length_is_taken_whole(app, settle):
    long = "".join(f"{i:x}节" for i in range(20_000))
    chat = chat_with(long)
    chat_with(long[:-1] + "x")
    settle()
    assert ids(long) == [chat]


def test_every_word_must_stand_in_the_same_text(app, settle):
    chat_with("red apple", "green pear")
    both = chat_with("a green pear and a red apple")
    settle()
    assert ids("apple green") == [both]


def test_a_title_is_found_without_matches(app, settle):
    chat = chat_with("nothing here", title="Quarterly 预算")
    settle()
    (row,) = found("预")
    assert (row.chat.id, row.chat.title, row.matches) == (chat, "Quarterly 预算", [])


def test_a_match_names_its_message_and_marks_the_hit(app, settle):
    chat = chat_with("say <hello> twice", title="hello")
    settle()
    (row,) = found("HELLO")
    message = db.session.scalars(select(Message).where(Message.session_id == chat)).one()
    assert row.matches == [(message.id, "user", "say &lt;<mark>hello</mark>&gt; twice", message.created_at)]
    assert (row.chat.message_count, row.chat.preview) == (1, "say <hello> twice")


def test_at_most_five_matches_the_newest_first(app, settle):
    chat_with(*(f"word {i}" for i in range(9)))
    settle()
    (row,) = found("word")
    assert [match.snippet for match in row.matches] == [f"<mark>word</mark> {i}" for i in (8, 7, 6, 5, 4)]


# What is not found


def test_failed_messages_are_hidden_and_come_back_when_they_are_not(app, settle):
    chat = chat_with("secretive text")
    settle()
    sql("""UPDATE chat_messages SET metadata_json = '{"error": {"code": "LLM_ERROR"}}'""")
    settle()
    assert ids("secretive") == []
    sql("""UPDATE chat_messages SET metadata_json = '{"error": null}'""")
    settle()
    assert ids("secretive") == [chat]
    sql("UPDATE chat_messages SET metadata_json = 'not json'")
    assert ids("secretive") == [chat]


def test_chats_in_the_trash_are_hidden_until_they_are_restored(app, settle):
    chat = chat_with("thrown away", title="away")
    settle()
    Chat.remove(chat)
    assert ids("away") == []
    Chat.restore(chat)
    assert ids("away") == [chat]


def test_destroyed_chats_leave_nothing_behind(app, settle):
    chat = chat_with("gone for good", title="gone")
    settle()
    Chat.destroy(chat)
    settle()
    assert ids("gone") == []
    assert db.session.execute(text("SELECT count(*) FROM search_entries")).scalar() == 0


def test_a_changed_text_is_found_as_it_is_now(app, settle):
    chat = chat_with("first wording", title="old name")
    settle()
    sql("UPDATE chat_messages SET content = 'second wording'")
    Chat.change(chat, title="new name")
    settle()
    assert (ids("first"), ids("second"), ids("old"), ids("new")) == ([], [chat], [], [chat])


def test_a_text_that_changes_while_it_is_indexed_is_not_lost(app, monkeypatch):
    chat = chat_with("before")
    cut = search.grams

    def change_meanwhile(content):
        monkeypatch.setattr(search, "grams", cut)
        sql("UPDATE chat_messages SET content = 'after'")
        return cut(content)

    monkeypatch.setattr(search, "grams", change_meanwhile)
    index()
    assert (ids("before"), ids("after")) == ([], [chat])


def test_messages_of_another_chat_move_with_it(app, settle):
    chat_with("wanderer")
    other = chat_with("home")
    settle()
    sql("UPDATE chat_messages SET session_id = :other", other=other)
    settle()
    assert ids("wanderer") == [other]


def test_replaced_rows_have_one_entry(app, settle):
    chat_with("original")
    settle()
    sql(f"REPLACE INTO chat_messages {COPY}", id=message_id(), content="replaced", details=None)
    settle()
    assert (len(ids("original")), len(ids("replaced"))) == (0, 1)
    assert db.session.execute(text("SELECT count(*) FROM search_entries WHERE message_id IS NOT NULL")).scalar() == 1


def test_what_is_no_utf8_neither_stops_the_index_nor_a_search(app, settle):
    chat = chat_with("sound text")
    sql("UPDATE chat_messages SET content = CAST(x'66696e64206d65ff' AS TEXT)")
    sql(f"INSERT INTO chat_messages {COPY}", id="blob", content=b"\xff\xfeblob", details=None)
    settle()
    assert (ids("find me"), ids("blob")) == ([chat], [chat])


# The index


def test_what_any_program_writes_is_entered(app):
    chat = str(uuid.uuid4())
    sql("INSERT INTO chat_sessions (id, title, created_at, updated_at) VALUES (:id, 'direct', '2026', '2026')", id=chat)
    columns = "(id, session_id, role, content, created_at)"
    sql(f"INSERT INTO chat_messages {columns} VALUES ('m', :id, 'user', 'by hand', '2026')", id=chat)
    assert search.pending_count() == 2
    assert ids("hand") == ids("direct") == [chat]
    assert search.index_pending() == 2
    assert search.pending_count() == 0
    assert ids("hand") == ids("direct") == [chat]


def test_new_metadata_alone_is_no_reason_to_index_again(app):
    chat = chat_with("kept")
    index()
    sql("""UPDATE chat_messages SET metadata_json = '{"mode": "mix"}'""")
    Chat.change(chat, details={"pinned": True})
    assert search.pending_count() == 0


def test_indexing_goes_in_small_steps(app):
    chat_with(*(f"text {i}" for i in range(10)))
    assert search.index_pending(limit=4) == 4
    assert search.pending_count() == 7
    assert len(found("text")[0].matches) == 5


def test_one_huge_text_is_indexed_in_parts(app, monkeypatch):
    monkeypatch.setattr(search, "BATCH_GRAMS", 100)
    chat = chat_with("".join(f"{i:x}" for i in range(500)), "after it")
    index()
    assert search.pending_count() == 0
    assert ids("1f21f3") == ids("after it") == [chat]


def test_rebuilding_starts_over(app):
    chat = chat_with("anew", title="title")
    index()
    sql("INSERT INTO search_index (search_index) VALUES ('delete-all')")
    assert ids("anew") == []
    sql(f"INSERT INTO chat_messages {COPY}", id="f", content="failed", details='{"error": 1}')
    sql("DELETE FROM search_entries")
    search.rebuild()
    assert search.pending_count() == 2
    assert ids("anew") == [chat]
    index()
    assert ids("anew") == ids("title") == [chat]
    assert ids("failed") == []


def test_the_index_survives_vacuum(app):
    chats = [chat_with(f"number {i}") for i in range(5)]
    index()
    Chat.destroy(chats[0])
    db.session.commit()
    raw = db.engine.raw_connection()
    raw.execute("VACUUM")
    raw.close()
    assert ids("number 3") == [chats[3]]


def test_what_stood_there_before_the_index_is_entered_by_the_migration(make_app, settings):
    settings.data_dir.mkdir()
    with closing(sqlite_module.connect(str(settings.database_file))) as older:
        older.executescript("""
            CREATE TABLE chat_sessions (id TEXT PRIMARY KEY, title TEXT NOT NULL, user_id TEXT, created_at TEXT,
                updated_at TEXT, deleted_at TEXT, metadata_json TEXT);
            CREATE TABLE chat_messages (id TEXT PRIMARY KEY, session_id TEXT REFERENCES chat_sessions (id), role TEXT,
                content TEXT NOT NULL, token_count INTEGER, user_id TEXT, created_at TEXT, metadata_json TEXT);
            INSERT INTO chat_sessions VALUES ('one', 'a title', NULL, '2024', '2024', NULL, NULL),
                ('two', 'b title', NULL, '2023', '2026', NULL, NULL);
            INSERT INTO chat_messages VALUES ('new', 'one', 'user', 'an older text', 1, NULL, '2025', NULL),
                ('old', 'two', 'user', 'an older text', 1, NULL, '2024', '{"mode": "mix"}'),
                ('bad', 'two', 'user', 'failed text', 1, NULL, '2026', '{"error": {"code": "LLM_ERROR"}}');
        """)
    with make_app().app_context():
        for _ in ("waiting", "indexed"):
            assert (ids("older"), ids("failed"), ids("title")) == (["one", "two"], [], ["two", "one"])
            index()


# Pages


def test_chats_come_by_their_newest_hit(app, settle):
    first, second = chat_with("word"), chat_with("word")
    settle()
    assert ids("word") == [second, first]
    say(first, "the word again", "assistant")
    settle()
    assert ids("word") == [first, second]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("indexed", [0, 30, 500], ids=["waiting", "half indexed", "indexed"])
def test_pages_lose_and_repeat_nothing(app, limit, indexed):
    chats = [chat_with("start", title="word" if i % 7 == 0 else "~") for i in range(17)]
    with transaction():
        for step in range(60):  # the chats interleave, and hits are far apart in some of them
            say(chats[step * step % 17], "word" if step % 3 else "nothing")
    search.index_pending(indexed)
    answer = ids("word", limit)
    assert len(answer) == len(set(answer))
    titles = select(Chat.id).where(Chat.title == "word")
    assert set(answer) == set(
        db.session.scalars(titles.union(select(Message.session_id).where(Message.content == "word")))
    )
    assert answer == ids("word", 50), "the order does not depend on the size of the pages"


def test_pages_hold_while_the_index_catches_up(app):
    chats = [chat_with("word") for _ in range(9)]
    page = search.search("word", 4)
    index()
    rest = search.search("word", 20, page.next_cursor)
    assert [row.chat.id for row in [*page.rows, *rest.rows]] == chats[::-1]


def test_a_chat_full_of_hits_does_not_starve_the_others(app, settle):
    older = chat_with("word")
    full = chat_with(*["word"] * 700)
    settle()
    page = search.search("word", 20)
    assert [(row.chat.id, len(row.matches)) for row in page.rows] == [(full, 5), (older, 1)]
    assert not page.has_more
    assert ids("word", limit=1) == [full, older]


@pytest.mark.parametrize(
    "keys",
    [{}, {"entry": "1"}, {"entry": 0}, {"entry": -1}, {"entry": 2**63}, {"entry": True}, {"entry": 1, "more": 1}, [1]],
)
def test_a_cursor_that_is_not_ours_is_refused(app, keys):
    with pytest.raises(InvalidCursor):
        search.search("word", 5, base64.urlsafe_b64encode(json.dumps(keys).encode()).decode())
