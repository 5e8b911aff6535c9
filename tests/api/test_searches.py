"""/api/chat/search: chats by what was said in them. How well it finds is tested in tests/models/test_search.py."""

from __future__ import annotations

import pytest

from tests.api.talk import SESSIONS, refused_fields

SEARCH = "/api/chat/search"
ROW_KEYS = {
    *("id", "title", "created_at", "updated_at", "deleted_at", "metadata"),
    *("message_count", "last_message_preview", "matches"),
}


def found(client, q, **query):
    response = client.get(SEARCH, q=q, **query)
    assert response.status_code == 200, response.json
    return response.json["sessions"]


def test_the_shape_of_a_page_and_its_rows(talker):
    chat = talker.new_chat()
    talker.talk(chat, "!say the quick brown fox")
    page = talker.get(SEARCH, q="brown").json
    assert set(page) == {"sessions", "next_cursor", "has_more"}
    (row,) = page["sessions"]
    assert set(row) == ROW_KEYS
    assert {name: row[name] for name in talker.row(chat)} == talker.row(chat)
    question, answer = talker.messages(chat)
    assert {match["message_id"] for match in row["matches"]} == {question["id"], answer["id"]}
    for match in row["matches"]:
        message = question if match["message_id"] == question["id"] else answer
        assert set(match) == {"message_id", "role", "snippet", "created_at"}
        assert (match["role"], match["created_at"]) == (message["role"], message["created_at"])
        assert "<mark>brown</mark>" in match["snippet"]


@pytest.mark.parametrize(
    "q", ["C++", "it's", "foo-bar", '"', "AND", "NEAR(", "*", "中", "100%", "a_b", "\\", "(", "^x", ":"]
)
def test_ordinary_input_finds_what_holds_it_literally(talker, q):
    chat, other = talker.new_chat(title="Kept"), talker.new_chat(title="Other")
    talker.talk(chat, f"!say before {q} after")
    talker.talk(other, "!say nothing of it")
    assert [row["id"] for row in found(talker, q)] == [chat]


def test_titles_are_searched_too(talker):
    chat = talker.new_chat(title="Holiday plans")
    (row,) = found(talker, "holiday")
    assert (row["id"], row["matches"]) == (chat, [])


@pytest.mark.parametrize("q", ["", " ", "nowhere to be found"])
def test_nothing_found(talker, q):
    talker.talk(talker.new_chat(), "!say hello")
    assert talker.get(SEARCH, q=q).json == {"sessions": [], "next_cursor": None, "has_more": False}


def test_deleted_chats_and_failed_messages_are_not_found(talker):
    gone, failed = talker.new_chat(), talker.new_chat()
    talker.talk(gone, "!say needle")
    talker.ask(failed, "!500 needle")
    talker.delete(f"{SESSIONS}/{gone}")
    assert found(talker, "needle") == []


def test_pages_lose_and_repeat_nothing(talker):
    chats = [talker.new_chat(title=f"needle {number}") for number in range(7)]
    seen, cursor = [], None
    while True:
        page = talker.get(SEARCH, q="needle", limit=2, cursor=cursor).json
        seen += [row["id"] for row in page["sessions"]]
        assert page["has_more"] is (page["next_cursor"] is not None)
        if not page["has_more"]:
            break
        cursor = page["next_cursor"]
        assert len(seen) <= len(chats)
    assert sorted(seen) == sorted(chats)


def test_snippets_are_escaped(talker):
    talker.talk(talker.new_chat(), "!say <img src=x onerror=alert(1)> needle")
    for match in found(talker, "needle")[0]["matches"]:
        assert "<img" not in match["snippet"]
        assert "&lt;img" in match["snippet"]


def test_limits(talker):
    assert refused_fields(talker.get(SEARCH, q="x", limit=101)) == ["limit"]
    assert talker.get(SEARCH, q="x", limit=100).status_code == 200
