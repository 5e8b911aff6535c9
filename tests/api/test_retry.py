"""Retry: the newest question answered again, in the same message; every version is kept."""

from __future__ import annotations

import pytest

from tests.api.talk import SESSIONS, Stream, execute, final, refused, refused_fields, request_id, text_of, types


@pytest.fixture
def answered(talker):
    """A chat with one answer; the words of the next ones are chosen by editing the question."""
    chat = talker.new_chat()
    answer = talker.talk(chat, "!say first")[0]
    return talker, chat, answer


def say(talker, chat, words):
    question = next(message for message in reversed(talker.messages(chat)) if message["role"] == "user")
    talker.patch(f"{SESSIONS}/{chat}/messages/{question['id']}", {"content": words})


def stream_retry(talker, chat, message, **body):
    return Stream(talker.post(f"{SESSIONS}/{chat}/messages/{message}/retry:stream", body))


def contents(message):
    return [variant["content"] for variant in message["metadata"]["variants"]]


def test_a_retry_is_the_same_message_with_new_content(answered):
    talker, chat, answer = answered
    say(talker, chat, "!say second")
    response = talker.retry(chat, answer["id"])
    assert response.status_code == 200
    body = response.json
    assert (body["id"], body["session_id"], body["role"], body["content"]) == (
        answer["id"],
        chat,
        "assistant",
        "second",
    )
    assert body["created_at"] == answer["created_at"]
    assert contents(body) == ["first", "second"]
    assert body["metadata"]["variant_index"] == 1
    question, stored = talker.messages(chat)
    assert {name: body[name] for name in stored} == stored
    assert (body["status"], body["error"]) == ("completed", None)
    assert (body["user_message"], body["assistant_message"]) == (question, stored)


def test_every_version_is_kept_oldest_first_with_what_it_carried(answered):
    talker, chat, answer = answered
    for words in ("second", "third"):
        say(talker, chat, f"!say {words} version")
        talker.retry(chat, answer["id"], mode="naive")
    stored = talker.messages(chat)[1]
    assert contents(stored) == ["first", "second version", "third version"]
    assert stored["metadata"]["variant_index"] == 2
    assert (stored["token_count"], stored["metadata"]["mode"], stored["metadata"]["model"]) == (2, "naive", "scripted")
    first = stored["metadata"]["variants"][0]
    assert (first["content"], first["token_count"], first["metadata"]["mode"]) == ("first", 1, "hybrid")
    assert talker.show(chat)["message_count"] == 2
    assert talker.row(chat)["last_message_preview"] == "third version"


def test_the_model_is_asked_as_the_first_time(talker):
    chat = talker.new_chat()
    answer = talker.talk(chat, "!say one", "!say two")[1]
    first = talker.prompts[-1]
    talker.retry(chat, answer["id"], temperature=0.7, max_tokens=9)
    assert talker.prompts[-1] == first
    assert first[-1] == {"role": "user", "content": "!say two"}
    assert (talker.model.requests[-1]["temperature"], talker.model.requests[-1]["max_tokens"]) == (0.7, 9)


def test_the_chat_moves_up(answered):
    talker, chat, answer = answered
    talker.new_chat()
    talker.retry(chat, answer["id"])
    assert talker.get(SESSIONS).json["sessions"][0]["id"] == chat


def test_only_the_newest_answer_can_be_retried(talker):
    chat = talker.new_chat()
    first, _ = talker.talk(chat, "!say one", "!say two")
    before, asked = talker.messages(chat), len(talker.prompts)
    refused(talker.retry(chat, first["id"]), 409, "NOT_LATEST_MESSAGE")
    refused(talker.retry(chat, before[2]["id"]), 409, "NOT_LATEST_MESSAGE")
    assert talker.messages(chat) == before
    assert len(talker.prompts) == asked


@pytest.mark.parametrize("how", ["retry", "retry:stream"])
def test_messages_that_are_not_there(answered, how):
    talker, chat, answer = answered
    other = talker.new_chat()

    def retry(session, message):
        return talker.post(f"{SESSIONS}/{session}/messages/{message}/{how}", {})

    refused(retry(chat, request_id()), 404, "MESSAGE_NOT_FOUND")
    refused(retry(other, answer["id"]), 404, "MESSAGE_NOT_FOUND")
    refused(retry(request_id(), answer["id"]), 404, "SESSION_NOT_FOUND")
    talker.delete(f"{SESSIONS}/{chat}")
    refused(retry(chat, answer["id"]), 404, "SESSION_NOT_FOUND")


@pytest.mark.parametrize("fault", ["!500 no", "!reset", "!half 3", "!say  "])
@pytest.mark.parametrize("versions", [1, 2])
def test_a_retry_that_fails_leaves_the_old_answer_as_it_was(answered, fault, versions):
    talker, chat, answer = answered
    for _ in range(versions - 1):
        talker.retry(chat, answer["id"])
    say(talker, chat, fault)
    before = talker.messages(chat)
    body = talker.retry(chat, answer["id"])
    assert body.status_code == 200
    assert (body.json["status"], body.json["assistant_message"], body.json["error"]["code"]) == (
        "failed",
        None,
        "LLM_ERROR",
    )
    assert body.json["content"] == before[1]["content"]
    assert talker.messages(chat) == before
    assert "error" not in before[0]["metadata"]
    assert talker.show(chat)["message_count"] == 2
    say(talker, chat, "!say recovered")
    assert talker.retry(chat, answer["id"]).json["content"] == "recovered"


def test_the_answer_before_a_question_that_failed_can_be_retried(answered):
    talker, chat, answer = answered
    talker.ask(chat, "!500 no")
    body = talker.retry(chat, answer["id"]).json
    assert (body["status"], body["content"]) == ("completed", "first")
    assert talker.prompts[-1][-1]["content"] == "!say first"


def test_a_retry_without_a_body(answered):
    talker, chat, answer = answered
    response = talker.http.post(f"{SESSIONS}/{chat}/messages/{answer['id']}/retry")
    assert (response.status_code, response.json["status"]) == (200, "completed")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"request_id": "x"}, "request_id"),
        ({"request_id": 5}, "request_id"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"history_limit": -1}, "history_limit"),
    ],
)
def test_fields_of_a_retry_that_cannot_be(answered, body, field):
    talker, chat, answer = answered
    before = talker.messages(chat)
    assert refused_fields(talker.retry(chat, answer["id"], **body)) == [field]
    refused(talker.retry(chat, answer["id"], mode="psychic"), 400, "INVALID_MODE")
    assert talker.messages(chat) == before


# The same request_id rules


def test_pressing_retry_twice_asks_once(answered):
    talker, chat, answer = answered
    body = {"request_id": request_id()}
    first = talker.retry(chat, answer["id"], **body)
    asked = len(talker.prompts)
    assert talker.retry(chat, answer["id"], **body).json == first.json
    assert len(talker.prompts) == asked
    assert len(contents(talker.messages(chat)[1])) == 2


def test_a_failed_retry_is_replayed_as_failed(answered):
    talker, chat, answer = answered
    say(talker, chat, "!500 no")
    body = {"request_id": request_id()}
    first = talker.retry(chat, answer["id"], **body)
    say(talker, chat, "!say would work now")
    assert talker.retry(chat, answer["id"], **body).json["error"] == first.json["error"]


def test_a_retry_and_a_turn_cannot_share_an_id(answered):
    talker, chat, answer = answered
    ((used,),) = execute(talker.app, "SELECT id FROM chat_turns")
    extra = refused(talker.retry(chat, answer["id"], request_id=used), 409, "IDEMPOTENCY_CONFLICT")
    assert set(extra) == {"existing_status", "expected_hash", "received_hash"}
    assert "variants" not in talker.messages(chat)[1]["metadata"]


def test_an_id_of_a_retry_belongs_to_its_message(answered):
    talker, chat, answer = answered
    body = {"request_id": request_id()}
    talker.retry(chat, answer["id"], **body)
    second = talker.talk(chat, "!say next")[0]
    refused(talker.retry(chat, second["id"], **body), 409, "IDEMPOTENCY_CONFLICT")


def test_one_answer_at_a_time(answered):
    talker, chat, answer = answered
    say(talker, chat, "!hang-after 1")
    stream = stream_retry(talker, chat, answer["id"])
    turn = stream.next("start").data["turn_id"]
    assert refused(talker.retry(chat, answer["id"]), 409, "TURN_IN_PROGRESS") == {"turn_id": turn}
    assert refused(talker.ask(chat, "me too"), 409, "TURN_IN_PROGRESS") == {"turn_id": turn}


# Streamed


def test_a_streamed_retry(answered):
    talker, chat, answer = answered
    say(talker, chat, "!words 10")
    turn = request_id()
    events = stream_retry(talker, chat, answer["id"], request_id=turn).rest()
    assert types(events) == ["start", "delta", "sources", "final"]
    assert events[0].data["turn_id"] == turn
    stored = talker.messages(chat)[1]
    assert final(events)["assistant_message"] == stored
    assert text_of(events) == stored["content"] == "w1 w2 w3 w4 w5 w6 w7 w8 w9 w10"
    assert contents(stored) == ["first", stored["content"]]
    assert final(stream_retry(talker, chat, answer["id"], request_id=turn).rest()) == final(events)


def test_a_streamed_retry_that_fails(answered):
    talker, chat, answer = answered
    say(talker, chat, "!half 2")
    before = talker.messages(chat)
    response = final(stream_retry(talker, chat, answer["id"]).rest())
    assert (response["status"], response["assistant_message"]) == ("failed", None)
    assert talker.messages(chat) == before


def test_a_stopped_retry_is_a_version_too(answered):
    talker, chat, answer = answered
    say(talker, chat, "!hang-after 2")
    stream = stream_retry(talker, chat, answer["id"])
    turn = stream.next("start").data["turn_id"]
    stream.next("delta")
    assert talker.stop(turn).json["status"] == "completed"
    stored = talker.messages(chat)[1]
    assert contents(stored) == ["first", "w1 w2"]
    assert stored["metadata"]["stopped"] is True


def test_a_retry_stopped_before_its_first_word_leaves_the_old_answer(answered):
    talker, chat, answer = answered
    say(talker, chat, "!hang")
    before = talker.messages(chat)
    turn = stream_retry(talker, chat, answer["id"]).next("start").data["turn_id"]
    body = talker.stop(turn).json
    assert (body["status"], body["error"]["code"]) == ("failed", "STOPPED")
    assert talker.messages(chat) == before
