"""/api/chat/sessions: making, listing, reading, renaming and deleting chats."""

from __future__ import annotations

import re
import uuid

import pytest

from tests.api.talk import SESSIONS, TABLES, add_session, execute, refused, refused_fields

SESSION_KEYS = {"id", "title", "created_at", "updated_at", "deleted_at", "metadata"}
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def test_a_new_session_has_the_frozen_shape(reader):
    response = reader.post(SESSIONS, {})
    assert response.status_code == 201
    session = response.json
    assert set(session) == SESSION_KEYS
    assert str(uuid.UUID(session["id"])) == session["id"]
    assert session["title"] == "New Chat"
    assert (session["deleted_at"], session["metadata"]) == (None, {})
    assert session["created_at"] == session["updated_at"]
    assert TIME.fullmatch(session["created_at"])


@pytest.mark.parametrize(
    "title", ["a", "x" * 100, "会话：测试", "👩‍👩‍👧‍👦 family", "  kept as it is  ", "<b>&amp;", "New Chat"]
)
def test_a_title_is_kept_as_it_was_given(reader, title):
    session = reader.post(SESSIONS, {"title": title}).json
    assert session["title"] == title
    assert reader.show(session["id"])["title"] == title


@pytest.mark.parametrize("title", ["x" * 101, "", " \n\t", 5, True, ["a"], {"a": 1}, "a\0b"])
def test_titles_that_cannot_be(reader, title):
    assert refused_fields(reader.post(SESSIONS, {"title": title})) == ["title"]
    assert execute(reader.app, "SELECT count(*) FROM chat_sessions") == [(0,)]


def test_the_longest_title_is_the_operators_choice(make_app):
    client = make_app(session_title_max_len=5).test_client()
    assert client.post(SESSIONS, json={"title": "12345"}).status_code == 201
    assert refused_fields(client.post(SESSIONS, json={"title": "123456"})) == ["title"]


@pytest.mark.parametrize("metadata", [{}, {"a": {"b": [1, 2.5, None, True, "五"]}}, {"": ""}, {"n": 2**63 - 1}])
def test_metadata_is_kept(reader, metadata):
    session = reader.post(SESSIONS, {"metadata": metadata}).json
    assert session["metadata"] == metadata
    assert reader.show(session["id"])["metadata"] == metadata
    assert reader.row(session["id"])["metadata"] == metadata


@pytest.mark.parametrize("metadata", ["text", 5, [1], True, {"a": "\0"}, {"\0": 1}, {"a": [{"b": "\0"}]}])
def test_metadata_that_cannot_be(reader, metadata):
    assert refused_fields(reader.post(SESSIONS, {"metadata": metadata})) == ["metadata"]


def test_a_session_is_shown_with_its_message_count(reader):
    chat = reader.new_chat(title="Seen")
    reader.talk(chat, "one", "two")
    session = reader.show(chat)
    assert set(session) == SESSION_KEYS | {"message_count"}
    assert (session["id"], session["title"], session["message_count"]) == (chat, "Seen", 4)


@pytest.mark.parametrize("unknown", ["01a1edbf-af92-73d7-a224-2ffde1a02fef", "x", "%20", "..", "👻"])
def test_sessions_that_are_not_there(shared, unknown):
    for response in (
        shared.get(f"{SESSIONS}/{unknown}"),
        shared.get(f"{SESSIONS}/{unknown}/messages"),
        shared.patch(f"{SESSIONS}/{unknown}", {"title": "x"}),
        shared.delete(f"{SESSIONS}/{unknown}"),
        shared.delete(f"{SESSIONS}/{unknown}", hard="true"),
        shared.ask(unknown, "hello"),
    ):
        refused(response, 404, "SESSION_NOT_FOUND")


# The list


def test_an_empty_list(reader):
    assert reader.get(SESSIONS).json == {"sessions": [], "next_cursor": None, "has_more": False}


def test_rows_of_the_list_have_the_frozen_shape(reader):
    empty, used = reader.new_chat(), reader.new_chat()
    answer = reader.talk(used, "one")[0]["content"]
    assert set(reader.row(used)) == SESSION_KEYS | {"message_count", "last_message_preview"}
    assert (reader.row(used)["message_count"], reader.row(empty)["message_count"]) == (2, 0)
    assert reader.row(empty)["last_message_preview"] is None
    preview = reader.row(used)["last_message_preview"]
    assert answer.startswith(preview)
    assert 0 < len(preview) <= 50


def test_the_preview_is_the_newest_message_and_never_half_a_character(talker):
    chat = talker.new_chat()
    family = "👨‍👩‍👧‍👦"
    talker.talk(chat, "!say short", f"!say {family * 20}")
    preview = talker.row(chat)["last_message_preview"]
    assert preview == family * 7
    assert len(preview) == 49


def test_the_preview_of_a_message_that_begins_far_to_the_right(talker):
    chat = talker.new_chat()
    talker.talk(chat, "!say " + " " * 250 + "far right")
    assert talker.row(chat)["last_message_preview"] == "far right"


def test_the_chat_that_changed_last_comes_first(reader):
    first, second, third = reader.new_chat(), reader.new_chat(), reader.new_chat()

    def order():
        return [row["id"] for row in reader.get(SESSIONS).json["sessions"]]

    assert order() == [third, second, first]
    reader.talk(first, "hello")
    assert order() == [first, third, second]
    reader.patch(f"{SESSIONS}/{second}", {"title": "renamed"})
    assert order() == [second, first, third]


TITLES = [
    "100% sure",
    "100 percent",
    "snake_case",
    "snakeXcase",
    "back\\slash",
    "it's",
    '"quoted"',
    "中文标题",
    "plain",
]


@pytest.mark.parametrize(
    ("q", "found"),
    [
        ("%", ["100% sure"]),
        ("0% s", ["100% sure"]),
        ("_", ["snake_case"]),
        ("e_c", ["snake_case"]),
        ("\\", ["back\\slash"]),
        ("'", ["it's"]),
        ('"', ['"quoted"']),
        ("文标", ["中文标题"]),
        ("plain", ["plain"]),
        ("/", []),
        ("nowhere", []),
        ("", TITLES),
    ],
)
def test_q_finds_titles_that_contain_it_literally(reader, q, found):
    for title in TITLES:
        add_session(reader.app, title)
    assert sorted(row["title"] for row in reader.get(SESSIONS, q=q).json["sessions"]) == sorted(found)


# Changing


def test_renaming(reader):
    chat = reader.new_chat(metadata={"kept": 1})
    before = reader.show(chat)
    response = reader.patch(f"{SESSIONS}/{chat}", {"title": "Better"})
    assert response.status_code == 200
    assert set(response.json) == SESSION_KEYS
    assert (response.json["title"], response.json["metadata"]) == ("Better", {"kept": 1})
    assert response.json["updated_at"] > before["updated_at"]
    assert response.json["created_at"] == before["created_at"]
    assert reader.show(chat)["title"] == "Better"


def test_metadata_is_merged_into_what_is_there(reader):
    chat = reader.new_chat(title="Kept", metadata={"a": 1, "b": {"c": 1}})
    reader.patch(f"{SESSIONS}/{chat}", {"metadata": {"b": 2, "d": None}})
    session = reader.patch(f"{SESSIONS}/{chat}", {"metadata": {"e": "新"}}).json
    assert session["metadata"] == {"a": 1, "b": 2, "d": None, "e": "新"}
    assert session["title"] == "Kept"


@pytest.mark.parametrize("body", [{}, {"title": None}, {"metadata": None}, {"metadata": {}}, {"unknown": 1}])
def test_a_change_of_nothing_loses_nothing(reader, body):
    chat = reader.new_chat(title="Kept", metadata={"a": 1})
    session = reader.patch(f"{SESSIONS}/{chat}", body).json
    assert (session["title"], session["metadata"]) == ("Kept", {"a": 1})


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"title": "x" * 101}, "title"),
        ({"title": ""}, "title"),
        ({"title": 1}, "title"),
        ({"metadata": []}, "metadata"),
    ],
)
def test_changes_that_cannot_be_change_nothing(reader, body, field):
    chat = reader.new_chat(title="Kept", metadata={"a": 1})
    before = reader.show(chat)
    assert refused_fields(reader.patch(f"{SESSIONS}/{chat}", {"metadata": {"b": 2}, "title": "New", **body})) == [field]
    assert reader.show(chat) == before


# Deleting


def rows_of(app, chat):
    return [
        execute(
            app, f"SELECT count(*) FROM {table} WHERE {'id' if table == 'chat_sessions' else 'session_id'} = ?", chat
        )
        for table in TABLES
    ]


def test_deleting_moves_to_the_trash(reader):
    chat, other = reader.new_chat(), reader.new_chat()
    reader.talk(chat, "hello")
    rows = rows_of(reader.app, chat)
    response = reader.delete(f"{SESSIONS}/{chat}")
    assert response.status_code == 200
    assert set(response.json) == {"id", "deleted", "hard", "deleted_at"}
    assert (response.json["id"], response.json["deleted"], response.json["hard"]) == (chat, True, False)
    assert TIME.fullmatch(response.json["deleted_at"])
    assert [row["id"] for row in reader.get(SESSIONS).json["sessions"]] == [other]
    for gone in (
        reader.get(f"{SESSIONS}/{chat}"),
        reader.get(f"{SESSIONS}/{chat}/messages"),
        reader.patch(f"{SESSIONS}/{chat}", {"title": "x"}),
        reader.ask(chat, "again"),
        reader.delete(f"{SESSIONS}/{chat}"),
    ):
        refused(gone, 404, "SESSION_NOT_FOUND")
    assert rows_of(reader.app, chat) == rows


@pytest.mark.parametrize("in_trash", [False, True])
def test_deleting_hard_removes_everything_of_that_chat_only(reader, in_trash):
    chat, other = reader.new_chat(), reader.new_chat()
    reader.talk(chat, "hello")
    reader.talk(other, "hello")
    if in_trash:
        reader.delete(f"{SESSIONS}/{chat}")
    response = reader.delete(f"{SESSIONS}/{chat}", hard="true")
    assert response.status_code == 200
    assert response.json == {"id": chat, "deleted": True, "hard": True, "deleted_at": None}
    assert rows_of(reader.app, chat) == [[(0,)], [(0,)], [(0,)]]
    assert rows_of(reader.app, other) == [[(1,)], [(2,)], [(1,)]]
    refused(reader.delete(f"{SESSIONS}/{chat}", hard="true"), 404, "SESSION_NOT_FOUND")


@pytest.mark.parametrize(("hard", "means"), [("true", True), ("1", True), ("false", False), ("0", False)])
def test_how_hard_is_said(reader, hard, means):
    assert reader.delete(f"{SESSIONS}/{reader.new_chat()}", hard=hard).json["hard"] is means


@pytest.mark.parametrize("hard", ["maybe", "", "2", "null"])
def test_a_doubtful_hard_deletes_nothing(reader, hard):
    chat = reader.new_chat()
    assert refused_fields(reader.delete(f"{SESSIONS}/{chat}", hard=hard)) == ["hard"]
    assert reader.show(chat)["deleted_at"] is None
