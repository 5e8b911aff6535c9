"""Pressing Send twice never asks twice; one turn at a time per chat, and chats do not wait for each other."""

from __future__ import annotations

import hashlib
import json
import time
from functools import partial

import pytest

from tests.api.talk import SESSIONS, at_once, everything_in, execute, refused, request_id, text_of, wait_for

CROWD = 50


def hash_of(body):
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8")).hexdigest()


def post(talker, chat, body, where="turn"):
    return talker.post(f"{SESSIONS}/{chat}/{where}", body)


@pytest.mark.parametrize("query", ["!words 3", "!words 10 50", "!500 no"])
def test_fifty_identical_requests_at_once(talker, query):
    chat, body = talker.new_chat(), {"request_id": request_id(), "query": query}
    tabs = [talker.another_tab() for _ in range(CROWD)]
    answers = at_once(*(partial(post, tab, chat, body) for tab in tabs))
    assert len(talker.prompts) == 1
    kept = [1, 0] if query.startswith("!500") else [1, 1]
    roles = [message["role"] for message in talker.messages(chat)]
    assert [roles.count("user"), roles.count("assistant")] == kept
    assert execute(talker.app, "SELECT count(*) FROM chat_turns") == [(1,)]
    stored = talker.turn(body["request_id"]).json
    good = [answer for answer in answers if answer.status_code == 200]
    assert good
    assert all(answer.json == stored for answer in good)
    for answer in answers:
        if answer.status_code != 200:
            assert refused(answer, 409, "IDEMPOTENCY_CONFLICT")["existing_status"] == "pending"


def test_identical_requests_over_both_doors_at_once(talker):
    chat, body = talker.new_chat(), {"request_id": request_id(), "query": "!words 5 100"}

    def ask(where):
        response = post(talker.another_tab(), chat, body, where)
        return response.status_code, response.get_data()

    answers = at_once(*(partial(ask, where) for where in ("turn", "turn:stream") * 5))
    assert {status for status, _ in answers} <= {200, 409}
    assert len(talker.prompts) == 1
    assert len(talker.messages(chat)) == 2


def test_different_questions_for_one_chat_at_once(talker):
    """One is answered; the others hear which one that is."""
    chat = talker.new_chat()
    answers = []

    def ask():
        answers.append(post(talker.another_tab(), chat, {"request_id": request_id(), "query": "!hang"}))

    def stop_the_first():
        wait_for(lambda: len(answers) == 19)
        talker.stop_everything()

    at_once(*[ask] * 20, stop_the_first)
    *others, first = answers
    assert first.json["error"]["code"] == "STOPPED"
    for answer in others:
        assert refused(answer, 409, "TURN_IN_PROGRESS") == {"turn_id": first.json["turn_id"]}
    assert len(talker.prompts) == 1
    assert len(talker.messages(chat)) == 1


# Replays


@pytest.mark.parametrize("query", ["!say yes", "!500 no", "!half 2"])
def test_a_replay_writes_nothing_and_asks_nobody(talker, query):
    chat, body = talker.new_chat(), {"request_id": request_id(), "query": query}
    first = post(talker, chat, body)
    rows, asked = everything_in(talker.app), len(talker.prompts)
    again = [post(talker, chat, body) for _ in range(3)]
    assert all(answer.status_code == 200 and answer.json == first.json for answer in again)
    assert (everything_in(talker.app), len(talker.prompts)) == (rows, asked)


def test_a_replay_is_given_long_after(talker):
    chat, body = talker.new_chat(), {"request_id": request_id(), "query": "!say first"}
    first = post(talker, chat, body).json
    talker.talk(chat, "!say second", "!say third")
    assert post(talker, chat, body).json == first
    assert len(talker.messages(chat)) == 6


def test_a_replay_is_given_while_another_turn_runs(talker):
    chat, body = talker.new_chat(), {"request_id": request_id(), "query": "!say first"}
    first = post(talker, chat, body).json
    talker.stream(chat, "!hang-after 1").next("delta")
    assert post(talker, chat, body).json == first


def test_a_failed_turn_is_tried_again_under_a_new_id(talker):
    chat = talker.new_chat()
    failed = {"request_id": request_id(), "query": "!500 no"}
    assert post(talker, chat, failed).json["status"] == "failed"
    assert post(talker, chat, failed).json["status"] == "failed"
    assert post(talker, chat, {"request_id": request_id(), "query": "!say yes"}).json["status"] == "completed"


def test_a_replay_survives_a_restart(make_app, talker):
    chat, body = talker.new_chat(), {"request_id": request_id(), "query": "!say yes"}
    first = post(talker, chat, body).json
    assert make_app().test_client().post(f"{SESSIONS}/{chat}/turn", json=body).json == first


@pytest.mark.parametrize(
    "spelling",
    [
        '{{"request_id": "{id}", "query": "!say 好", "mode": "naive"}}',
        '{{"mode":"naive","query":"!say 好","request_id":"{id}"}}',
        '\n{{ "query" : "!say \\u597d",\t"request_id":"{id}","mode":"naive" }} ',
    ],
)
def test_the_same_body_spelled_otherwise_is_the_same(talker, spelling):
    chat, body = talker.new_chat(), {"request_id": request_id(), "query": "!say 好", "mode": "naive"}
    first = post(talker, chat, body)
    raw = spelling.format(id=body["request_id"]).encode()
    again = talker.http.post(f"{SESSIONS}/{chat}/turn", data=raw)
    assert (again.status_code, again.json) == (200, first.json)


# Conflicts


@pytest.mark.parametrize(
    "change",
    [
        {"query": "other"},
        {"query": "!say yes "},
        {"mode": "naive"},
        {"max_tokens": 5},
        {"temperature": 0},
        {"unknown": 1},
    ],
)
@pytest.mark.parametrize(("query", "status"), [("!say yes", "completed"), ("!500 no", "failed")])
def test_the_same_id_with_another_body(talker, change, query, status):
    chat, body = talker.new_chat(), {"request_id": request_id(), "query": query}
    post(talker, chat, body)
    rows, asked = everything_in(talker.app), len(talker.prompts)
    other = {**body, **change}
    for where in ("turn", "turn:stream"):
        assert refused(post(talker, chat, other, where), 409, "IDEMPOTENCY_CONFLICT") == {
            "existing_status": status,
            "expected_hash": hash_of(body),
            "received_hash": hash_of(other),
        }
    assert (everything_in(talker.app), len(talker.prompts)) == (rows, asked)


def test_a_pending_turn_is_a_conflict_for_its_own_body_too(talker):
    chat, body = talker.new_chat(), {"request_id": request_id(), "query": "!hang-after 1"}
    talker.stream(chat, **body).next("delta")
    assert refused(post(talker, chat, body), 409, "IDEMPOTENCY_CONFLICT") == {
        "existing_status": "pending",
        "expected_hash": hash_of(body),
        "received_hash": hash_of(body),
    }


@pytest.mark.parametrize("query", ["!say yes", "!500 no", "!hang-after 1"])
def test_an_id_of_another_chat(talker, query):
    chat, other = talker.new_chat(), talker.new_chat()
    body = {"request_id": request_id(), "query": query}
    if "hang" in query:
        talker.stream(chat, **body).next("delta")
    else:
        post(talker, chat, body)
    extra = refused(post(talker, other, body), 409, "IDEMPOTENCY_CONFLICT")
    assert set(extra) == {"existing_status", "expected_hash", "received_hash"}
    assert talker.messages(other) == []


# One turn at a time per chat


@pytest.mark.parametrize("where", ["turn", "turn:stream"])
def test_a_second_turn_waits_its_time(talker, where):
    chat = talker.new_chat()
    stream = talker.stream(chat, "!hang-after 1")
    running = stream.next("start").data["turn_id"]
    body = {"request_id": request_id(), "query": "!say me too"}
    assert refused(post(talker, chat, body, where), 409, "TURN_IN_PROGRESS") == {"turn_id": running}
    assert [message["content"] for message in talker.messages(chat)] == ["!hang-after 1"]
    stream.next("delta")
    talker.stop(running)
    assert post(talker, chat, body).json["status"] == "completed", "the id was not used up"


def test_chats_do_not_wait_for_each_other(talker):
    talker.stream(talker.new_chat(), "!hang-after 1").next("delta")
    for _ in range(3):
        talker.talk(talker.new_chat(), "!say quick")
    assert execute(talker.app, "SELECT count(*) FROM chat_turns WHERE status = 'pending'") == [(1,)]


def test_twenty_chats_at_once(talker):
    chats = [talker.new_chat() for _ in range(20)]

    def ask(chat):
        return talker.another_tab().stream(chat, "!sleep-headers 0.5 !words 3").rest()

    began = time.monotonic()
    streams = at_once(*(partial(ask, chat) for chat in chats))
    assert time.monotonic() - began < 8, "one after another they would take ten seconds"
    assert all(text_of(events) == "w1 w2 w3" for events in streams)
    assert all(len(talker.messages(chat)) == 2 for chat in chats)
