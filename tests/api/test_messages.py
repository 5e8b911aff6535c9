"""/api/chat/sessions/{id}/messages: reading them, editing the newest question, choosing a version of an answer."""

from __future__ import annotations

import pytest

from tests.api.talk import SESSIONS, add_message, add_session, execute, refused, refused_fields, request_id

MESSAGE_KEYS = {"id", "session_id", "role", "content", "token_count", "created_at", "metadata"}


def path(chat, message):
    return f"{SESSIONS}/{chat}/messages/{message}"


def test_an_empty_chat_has_an_empty_page(reader):
    response = reader.get(f"{SESSIONS}/{reader.new_chat()}/messages")
    assert response.status_code == 200
    assert response.json == {"messages": [], "next_cursor": None, "has_more": False}


def test_messages_have_the_frozen_shape_and_come_oldest_first(reader):
    chat = reader.new_chat()
    reader.talk(chat, "one", "two")
    messages = reader.messages(chat)
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant"]
    assert [messages[0]["content"], messages[2]["content"]] == ["one", "two"]
    for message in messages:
        assert set(message) == MESSAGE_KEYS
        assert message["session_id"] == chat
        assert isinstance(message["token_count"], int)
        assert message["token_count"] > 0
        assert isinstance(message["metadata"], dict)
    times = [message["created_at"] for message in messages]
    assert times == sorted(set(times))


def test_what_another_program_wrote_is_listed_too(reader):
    chat = add_session(reader.app)
    add_message(reader.app, chat, "system", "be brief", "2026-01-01T00:00:00.000Z", meta={"any": ["thing"]})
    add_message(reader.app, chat, "user", "x", "2026-01-01T00:00:01.000Z")
    execute(reader.app, "UPDATE chat_messages SET metadata_json = 'not json' WHERE role = 'user'")
    system, user = reader.messages(chat)
    assert (system["role"], system["metadata"], system["token_count"]) == ("system", {"meta": {"any": ["thing"]}}, None)
    assert user["metadata"] == {}


def test_messages_of_other_chats_are_not_listed(reader):
    chat, other = reader.new_chat(), reader.new_chat()
    reader.talk(other, "elsewhere")
    assert reader.messages(chat) == []


# Editing the newest question


def test_editing_the_newest_question_and_answering_it_again(talker):
    chat = talker.new_chat()
    talker.talk(chat, "!say first", "!say second")
    question, answer = talker.messages(chat)[2:]
    edited = talker.patch(path(chat, question["id"]), {"content": "!say better"})
    assert edited.status_code == 200
    assert set(edited.json) == MESSAGE_KEYS
    assert (edited.json["id"], edited.json["content"]) == (question["id"], "!say better")
    assert talker.messages(chat)[2]["content"] == "!say better"
    assert talker.messages(chat)[3] == answer
    assert talker.retry(chat, answer["id"]).json["content"] == "better"
    assert [entry["content"] for entry in talker.prompts[-1][1:]] == ["!say first", "first", "!say better"]
    assert talker.show(chat)["message_count"] == 4


def test_an_edited_question_is_counted_anew(reader):
    chat = reader.new_chat()
    reader.talk(chat, "one")
    question = reader.messages(chat)[0]
    longer = reader.patch(path(chat, question["id"]), {"content": "one two three four five six"}).json
    assert longer["token_count"] > question["token_count"]


def test_only_the_newest_question_can_be_edited(reader):
    chat = reader.new_chat()
    reader.talk(chat, "one", "two")
    before = reader.messages(chat)
    refused(reader.patch(path(chat, before[0]["id"]), {"content": "x"}), 409, "NOT_LATEST_MESSAGE")
    assert refused_fields(reader.patch(path(chat, before[3]["id"]), {"content": "x"})) == ["content"]
    assert reader.messages(chat) == before


@pytest.mark.parametrize("content", ["", " \n", 5, ["x"], {"a": 1}, "a\0b", True, "x" * 200_001])
def test_words_that_cannot_be_change_nothing(reader, content):
    chat = reader.new_chat()
    reader.talk(chat, "one")
    before = reader.messages(chat)
    response = reader.patch(path(chat, before[0]["id"]), {"content": content})
    if isinstance(content, str) and not content.strip():
        refused(response, 400, "EMPTY_QUERY")
    else:
        assert set(refused_fields(response)) == {"content"} or refused_fields(response)[0].startswith("content")
    assert reader.messages(chat) == before


# Choosing a version


@pytest.fixture
def versions(talker):
    """A chat whose answer has three versions; the newest one is shown."""
    chat = talker.new_chat()
    answer = talker.talk(chat, "!say first")[0]["id"]
    question = talker.messages(chat)[0]["id"]
    for words in ("second", "third"):
        talker.patch(path(chat, question), {"content": f"!say {words}"})
        talker.retry(chat, answer)
    return talker, chat, answer


@pytest.mark.parametrize(("index", "words"), [(0, "first"), (1, "second"), (2, "third")])
def test_choosing_a_version(versions, index, words):
    talker, chat, answer = versions
    chosen = talker.patch(path(chat, answer), {"variant_index": index})
    assert chosen.status_code == 200
    assert (chosen.json["id"], chosen.json["content"]) == (answer, words)
    assert chosen.json["metadata"]["variant_index"] == index
    assert [variant["content"] for variant in chosen.json["metadata"]["variants"]] == ["first", "second", "third"]
    assert talker.messages(chat)[1] == chosen.json
    assert talker.row(chat)["last_message_preview"] == words


def test_the_chosen_version_is_what_the_model_reads_next(versions):
    talker, chat, answer = versions
    talker.patch(path(chat, answer), {"variant_index": 1})
    talker.talk(chat, "!say next")
    assert [entry["content"] for entry in talker.prompts[-1][1:]] == ["!say third", "second", "!say next"]


@pytest.mark.parametrize("index", [3, 1000, -1, 2**31 + 1, 2**70, "0", 1.5, True, [0]])
def test_versions_that_are_not_there(versions, index):
    talker, chat, answer = versions
    before = talker.messages(chat)
    assert refused_fields(talker.patch(path(chat, answer), {"variant_index": index})) == ["variant_index"]
    assert talker.messages(chat) == before


def test_only_the_newest_answer_has_versions_to_choose(versions):
    talker, chat, answer = versions
    question = talker.messages(chat)[0]["id"]
    assert refused_fields(talker.patch(path(chat, question), {"variant_index": 0})) == ["variant_index"]
    talker.talk(chat, "!say next")
    refused(talker.patch(path(chat, answer), {"variant_index": 0}), 409, "NOT_LATEST_MESSAGE")


def test_an_answer_that_was_never_retried_has_one_version(reader):
    chat = reader.new_chat()
    answer = reader.talk(chat, "hello")[0]
    chosen = reader.patch(path(chat, answer["id"]), {"variant_index": 0})
    assert (chosen.status_code, chosen.json["content"]) == (200, answer["content"])
    assert refused_fields(reader.patch(path(chat, answer["id"]), {"variant_index": 1})) == ["variant_index"]


# Both


@pytest.mark.parametrize("body", [{}, {"content": "x", "variant_index": 0}, {"content": None, "variant_index": None}])
def test_a_change_is_one_of_the_two(reader, body):
    chat = reader.new_chat()
    reader.talk(chat, "hello")
    before = reader.messages(chat)
    refused_fields(reader.patch(path(chat, before[0]["id"]), body))
    assert reader.messages(chat) == before


@pytest.mark.parametrize("body", [{"content": "x"}, {"variant_index": 0}])
def test_messages_that_are_not_there(reader, body):
    chat, other = reader.new_chat(), reader.new_chat()
    reader.talk(other, "elsewhere")
    foreign = reader.messages(other)[0]["id"]
    refused(reader.patch(path(chat, request_id()), body), 404, "MESSAGE_NOT_FOUND")
    refused(reader.patch(path(chat, foreign), body), 404, "MESSAGE_NOT_FOUND")
    refused(reader.patch(path(request_id(), foreign), body), 404, "SESSION_NOT_FOUND")
    reader.delete(f"{SESSIONS}/{other}")
    refused(reader.patch(path(other, foreign), body), 404, "SESSION_NOT_FOUND")


def test_nothing_changes_under_a_running_answer(talker):
    chat = talker.new_chat()
    answer = talker.talk(chat, "!say first")[0]["id"]
    stream = talker.stream(chat, "!hang-after 2")
    turn = stream.next("start").data["turn_id"]
    question = talker.messages(chat)[-1]["id"]
    for message, body in ((question, {"content": "x"}), (answer, {"variant_index": 0})):
        extra = refused(talker.patch(path(chat, message), body), 409, "TURN_IN_PROGRESS")
        assert extra == {"turn_id": turn}
    talker.stop(turn)
