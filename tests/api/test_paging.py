"""Pages: nothing is lost and nothing repeated, also among equal timestamps; cursors are ours or refused."""

from __future__ import annotations

import base64
import json

import pytest

from tests.api.conftest import Talker
from tests.api.talk import SESSIONS, add_session, execute, execute_many, refused, refused_fields, request_id

MOMENTS = ["2026-01-11T08:30:00.123Z", "2026-01-11T08:30:00.124Z", "2026-01-12T00:00:00.000Z"]
COUNT = 61


def cursor_of(value):
    text = value if isinstance(value, str) else json.dumps(value)
    return base64.urlsafe_b64encode(text.encode("utf-8", "surrogatepass")).decode()


@pytest.fixture(scope="module")
def crowded(shared_app):
    """61 chats and, in the first, 61 messages; they share three moments between them."""
    sessions = [(request_id(), f"chat {n}", MOMENTS[n % 3], MOMENTS[n % 3]) for n in range(COUNT)]
    execute_many(
        shared_app, "INSERT INTO chat_sessions (id, title, created_at, updated_at) VALUES (?, ?, ?, ?)", sessions
    )
    chat = sessions[0][0]
    messages = [(request_id(), chat, ("user", "assistant")[n % 2], f"m{n}", MOMENTS[n % 3]) for n in range(COUNT)]
    execute_many(
        shared_app,
        "INSERT INTO chat_messages (id, session_id, role, content, created_at) VALUES (?, ?, ?, ?, ?)",
        messages,
    )
    by_session = sorted(((moment, session_id) for session_id, _, _, moment in sessions), reverse=True)
    by_message = sorted((moment, message_id) for message_id, _, _, _, moment in messages)
    return (
        Talker(shared_app.test_client()),
        chat,
        [session_id for _, session_id in by_session],
        [message_id for _, message_id in by_message],
    )


def walk(client, path, kind, **query):
    """All pages from the first to the last."""
    pages, cursor = [], None
    while True:
        page = client.get(path, cursor=cursor, **query).json
        assert set(page) == {kind, "next_cursor", "has_more"}
        pages.append([row["id"] for row in page[kind]])
        assert page["has_more"] is (page["next_cursor"] is not None)
        if not page["has_more"]:
            return pages
        cursor = page["next_cursor"]
        assert len(pages) <= COUNT


@pytest.mark.parametrize("limit", [1, 7, 20, 60, 61, 62, 100])
def test_pages_of_sessions(crowded, limit):
    client, _, expected, _ = crowded
    pages = walk(client, SESSIONS, "sessions", limit=limit)
    assert [row for page in pages for row in page] == expected
    assert all(len(page) == limit for page in pages[:-1])
    assert 0 < len(pages[-1]) <= limit


@pytest.mark.parametrize("limit", [1, 7, 50, 60, 61, 62, 200])
def test_pages_of_messages_walk_back_and_each_is_oldest_first(crowded, limit):
    client, chat, _, expected = crowded
    pages = walk(client, f"{SESSIONS}/{chat}/messages", "messages", limit=limit)
    assert [row for page in reversed(pages) for row in page] == expected
    assert all(len(page) == limit for page in pages[:-1])
    assert 0 < len(pages[-1]) <= limit


def test_default_sizes(crowded, shared_app):
    client, chat, _, _ = crowded
    assert len(client.get(SESSIONS).json["sessions"]) == 20
    assert len(client.messages(chat)) == 50


def test_default_sizes_are_the_operators_choice(make_app):
    app = make_app(sessions_default_limit=2, messages_default_limit=3)
    client = Talker(app.test_client())
    chats = [client.new_chat() for _ in range(3)]
    client.talk(chats[0], "one", "two")
    assert len(client.get(SESSIONS).json["sessions"]) == 2
    assert len(client.messages(chats[0])) == 3


@pytest.mark.parametrize("limit", [4, 9])
def test_pages_of_a_filtered_list(crowded, limit):
    client, _, expected, _ = crowded
    titles = dict(execute(client.app, "SELECT id, title FROM chat_sessions"))
    pages = walk(client, SESSIONS, "sessions", limit=limit, q="chat 1")
    assert [row for page in pages for row in page] == [row for row in expected if "chat 1" in titles[row]]


def test_deleted_chats_leave_no_holes(reader):
    chats = [add_session(reader.app, moment=MOMENTS[0]) for _ in range(20)]
    gone = sorted(chats)[::2]
    for chat in gone:
        reader.delete(f"{SESSIONS}/{chat}")
    pages = walk(reader, SESSIONS, "sessions", limit=3)
    assert [row for page in pages for row in page] == sorted(set(chats) - set(gone), reverse=True)
    assert [len(page) for page in pages] == [3, 3, 3, 1]


def test_what_arrives_while_somebody_pages_repeats_nothing(reader):
    chats = {add_session(reader.app, moment=MOMENTS[0]) for _ in range(9)}
    page = reader.get(SESSIONS, limit=4).json
    seen = [row["id"] for row in page["sessions"]]
    while page["has_more"]:
        add_session(reader.app, moment=MOMENTS[2])
        page = reader.get(SESSIONS, limit=4, cursor=page["next_cursor"]).json
        seen += [row["id"] for row in page["sessions"]]
    assert sorted(seen) == sorted(chats)


def test_a_page_stays_where_it_was_while_somebody_chats_on(reader):
    chat = reader.new_chat()
    reader.talk(chat, "one", "two", "three")
    page = reader.get(f"{SESSIONS}/{chat}/messages", limit=2).json
    older = reader.messages(chat)[2:4]
    reader.talk(chat, "four")
    assert reader.messages(chat, limit=2, cursor=page["next_cursor"]) == older


def test_a_cursor_is_url_safe_base64_of_exactly_its_keys(crowded):
    client, chat, _, _ = crowded
    for path, kind, key in (
        (SESSIONS, "sessions", "updated_at"),
        (f"{SESSIONS}/{chat}/messages", "messages", "created_at"),
    ):
        page = client.get(path, limit=5).json
        last = page[kind][-1] if kind == "sessions" else page[kind][0]
        assert json.loads(base64.urlsafe_b64decode(page["next_cursor"])) == {key: last[key], "id": last["id"]}


MALFORMED = {
    "not base64": "!!!",
    "not the url-safe alphabet": "a b",
    "cut short": cursor_of({"updated_at": MOMENTS[0], "created_at": MOMENTS[0], "id": "x"})[:-5],
    "no padding": cursor_of({"updated_at": MOMENTS[0], "id": "x1"}).rstrip("=")[:-1],
    "not ASCII": "é你",
    "not JSON": cursor_of("hello"),
    "not UTF-8": base64.urlsafe_b64encode(b"\xff\xfe{}").decode(),
    "an array": cursor_of([MOMENTS[0], "x"]),
    "a string": cursor_of('"text"'),
    "a number": cursor_of("5"),
    "null": cursor_of("null"),
    "empty object": cursor_of({}),
    "only the id": cursor_of({"id": "x"}),
    "only the times": cursor_of({"updated_at": MOMENTS[0], "created_at": MOMENTS[0]}),
    "one key too many": cursor_of({"updated_at": MOMENTS[0], "created_at": MOMENTS[0], "id": "x"}),
    "other names": cursor_of({"at": MOMENTS[0], "id": "x"}),
    "NaN": cursor_of('{"updated_at": NaN, "id": NaN}'),
    "deep": cursor_of("[" * 10_000),
    "NUL": "\0",
}


@pytest.mark.parametrize("cursor", MALFORMED.values(), ids=MALFORMED.keys())
@pytest.mark.parametrize("where", ["sessions", "messages", "search"])
def test_malformed_cursors(crowded, where, cursor):
    client, chat, _, _ = crowded
    path = {"sessions": SESSIONS, "messages": f"{SESSIONS}/{chat}/messages", "search": "/api/chat/search"}[where]
    refused(client.get(path, cursor=cursor, **({"q": "m"} if where == "search" else {})), 400, "INVALID_CURSOR")


@pytest.mark.parametrize("value", [5, None, True, 1.5, ["x"], {"a": 1}, "\ud800", "a\udfffb"])
@pytest.mark.parametrize("key", ["time", "id"])
@pytest.mark.parametrize(("where", "time"), [("sessions", "updated_at"), ("messages", "created_at")])
def test_cursors_with_values_that_no_list_gives_out(crowded, where, time, key, value):
    client, chat, _, _ = crowded
    path = SESSIONS if where == "sessions" else f"{SESSIONS}/{chat}/messages"
    keys = {time: MOMENTS[0], "id": request_id(), (time if key == "time" else "id"): value}
    refused(client.get(path, cursor=cursor_of(keys)), 400, "INVALID_CURSOR")


def test_a_cursor_of_one_list_is_none_of_another(crowded):
    client, chat, _, _ = crowded
    messages = f"{SESSIONS}/{chat}/messages"
    of_sessions = client.get(SESSIONS, limit=1).json["next_cursor"]
    of_messages = client.get(messages, limit=1).json["next_cursor"]
    refused(client.get(messages, cursor=of_sessions), 400, "INVALID_CURSOR")
    refused(client.get(SESSIONS, cursor=of_messages), 400, "INVALID_CURSOR")
    refused(client.get("/api/chat/search", q="m", cursor=of_messages), 400, "INVALID_CURSOR")


@pytest.mark.parametrize("limit", ["0", "-1", "abc", "1.5", "", "1e3", "null", "9" * 5000, str(2**63)])
@pytest.mark.parametrize("where", ["sessions", "messages", "search"])
def test_limits_that_cannot_be(crowded, where, limit):
    client, chat, _, _ = crowded
    path = {"sessions": SESSIONS, "messages": f"{SESSIONS}/{chat}/messages", "search": "/api/chat/search"}[where]
    assert refused_fields(client.get(path, limit=limit)) == ["limit"]


def test_the_largest_limits(crowded):
    client, chat, _, _ = crowded
    messages = f"{SESSIONS}/{chat}/messages"
    assert client.get(SESSIONS, limit=100).status_code == client.get(messages, limit=200).status_code == 200
    assert refused_fields(client.get(SESSIONS, limit=101)) == ["limit"]
    assert refused_fields(client.get(messages, limit=201)) == ["limit"]
