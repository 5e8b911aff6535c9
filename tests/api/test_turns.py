"""POST /turn: a question, its answer, and what is left when there is none."""

from __future__ import annotations

import hashlib
import json
import socket

import pytest

from tests.api.conftest import Talker
from tests.api.talk import (
    SESSIONS,
    add_message,
    everything_in,
    execute,
    refused,
    refused_fields,
    request_id,
    wait_for,
)

TURN_KEYS = {"turn_id", "status", "user_message", "assistant_message", "error"}
MODES = ["naive", "local", "global", "hybrid", "mix", "bypass"]


def test_a_turn_has_the_frozen_shape(talker):
    chat, turn = talker.new_chat(), request_id()
    response = talker.post(f"{SESSIONS}/{chat}/turn", {"request_id": turn, "query": "!words 5"})
    assert response.status_code == 200
    body = response.json
    assert set(body) >= TURN_KEYS
    assert (body["turn_id"], body["status"], body["error"]) == (turn, "completed", None)
    question, answer = talker.messages(chat)
    assert (body["user_message"], body["assistant_message"]) == (question, answer)
    assert (question["role"], question["content"]) == ("user", "!words 5")
    assert (answer["role"], answer["content"]) == ("assistant", "w1 w2 w3 w4 w5")


def test_what_an_answer_carries(talker):
    chat = talker.new_chat()
    answer = talker.talk(chat, "!words 5")[0]
    details = answer["metadata"]
    assert {"mode", "sources", "model", "usage", "latency_ms"} <= set(details)
    assert (details["mode"], details["sources"], details["model"]) == ("hybrid", [], "scripted")
    assert answer["token_count"] == details["usage"]["completion_tokens"] == 5
    assert details["usage"]["total_tokens"] == details["usage"]["prompt_tokens"] + 5
    assert isinstance(details["latency_ms"], int)
    assert details["latency_ms"] >= 0
    assert "stopped" not in details


def test_an_answer_is_counted_here_where_the_server_does_not_tell(talker):
    answer = talker.talk(talker.new_chat(), "!no-usage !words 50")[0]
    assert 40 <= answer["token_count"] <= 160


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_answers(reader, mode):
    response = reader.ask(reader.new_chat(), "hello", mode=mode)
    assert response.json["assistant_message"]["metadata"]["mode"] == mode


def test_the_chat_is_touched_and_counted(talker):
    chat = talker.new_chat()
    before = talker.show(chat)
    talker.talk(chat, "!say the answer")
    row = talker.row(chat)
    assert (row["message_count"], row["last_message_preview"]) == (2, "the answer")
    assert row["updated_at"] > before["updated_at"]


def test_a_turn_in_the_table(talker):
    chat, turn = talker.new_chat(), request_id()
    body = {"request_id": turn, "query": "!say 好", "temperature": 0.5, "mode": "naive"}
    answered = talker.post(f"{SESSIONS}/{chat}/turn", body).json
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    columns = "session_id, payload_hash, user_message_id, assistant_message_id, status, error_detail"
    assert execute(talker.app, f"SELECT {columns} FROM chat_turns WHERE id = ?", turn) == [
        (
            chat,
            hashlib.sha256(canonical).hexdigest(),
            answered["user_message"]["id"],
            answered["assistant_message"]["id"],
            "completed",
            None,
        )
    ]
    ((created, completed),) = execute(talker.app, "SELECT created_at, completed_at FROM chat_turns")
    assert created <= completed


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({}, {}),
        ({"temperature": 0, "max_tokens": 7}, {"temperature": 0, "max_tokens": 7}),
        ({"temperature": 1.5}, {"temperature": 1.5}),
        ({"temperature": None, "max_tokens": None}, {}),
    ],
)
def test_options_reach_the_model(talker, options, sent):
    talker.ask(talker.new_chat(), "hi", **options)
    body = talker.model.requests[-1]
    assert {name: body[name] for name in ("temperature", "max_tokens") if name in body} == sent


@pytest.mark.parametrize(
    "query",
    [
        "  spaces around  ",
        "two\nlines\r\nand\ttabs",
        "<script>alert(1)</script> & \"quotes\" 'single'",
        "👩‍👩‍👧‍👦 é e\u0301 \u202eright-to-left",
        "line\u2028separators\u2029\x85",
        "%s %d {} {{x}} $1 \\0 ; DROP TABLE chat_messages; --",
        "\x01\x1f\x7f control",
        "\ufffe\uffff\U0010ffff",
        "你好，世界",
    ],
)
def test_words_arrive_and_stay_exactly_as_they_were_typed(talker, query):
    chat = talker.new_chat()
    response = talker.ask(chat, query)
    assert response.json["user_message"]["content"] == query
    assert talker.messages(chat)[0]["content"] == query
    assert talker.prompts[-1][-1] == {"role": "user", "content": query}
    assert response.json["assistant_message"]["content"] == f"You said: {query}"


def test_the_longest_query(reader):
    chat = reader.new_chat()
    assert reader.ask(chat, "é" * 200_000).json["status"] == "completed"
    assert refused_fields(reader.ask(chat, "é" * 200_001)) == ["query"]
    assert reader.show(chat)["message_count"] == 2


def test_the_longest_query_is_the_operators_choice(make_app):
    client = Talker(make_app(max_query_chars=10).test_client())
    chat = client.new_chat()
    assert client.ask(chat, "👻" * 10).status_code == 200
    assert refused_fields(client.ask(chat, "👻" * 11)) == ["query"]


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("request_id", ["x", "123", 5, True, ["a"], {"a": 1}, "g" * 32, "1_" * 16, " " * 32, request_id() + "0"]),
        ("query", [5, True, ["a"], {"a": 1}, "a\0b"]),
        ("mode", [5, None, ["naive"], True]),
        ("max_tokens", [0, -1, 1.5, "5", True, 2**31, 2**64, [1]]),
        ("temperature", [-0.1, 2.1, "1", True, 2**64, [1]]),
        ("history_limit", [-1, 1.5, "5", True, 2**64]),
        ("max_history_tokens", [-1, 1.5, "5", True, 2**64]),
        ("multimodal_content", ["x", 5, [], True]),
    ],
)
def test_fields_of_the_wrong_type_or_range(shared, field, wrong):
    chat = shared.new_chat()
    before = everything_in(shared.app)
    for value in wrong:
        body = {"request_id": request_id(), "query": "x", field: value}
        names = refused_fields(shared.post(f"{SESSIONS}/{chat}/turn", body))
        assert {name.partition(".")[0] for name in names} == {field}, value
    assert everything_in(shared.app) == before


@pytest.mark.parametrize("spell", [str, str.upper, lambda text: text.replace("-", "")])
def test_a_turn_is_known_by_its_request_id_as_the_client_spells_it(reader, spell):
    """Some clients make their UUIDs in capitals; the turn_id that they get back is the request_id that they sent."""
    chat, turn = reader.new_chat(), spell(request_id())
    body = {"request_id": turn, "query": "hello"}
    first = reader.post(f"{SESSIONS}/{chat}/turn", body).json
    assert first["turn_id"] == turn
    assert reader.post(f"{SESSIONS}/{chat}/turn", body).json == first
    assert reader.turn(turn).json == first


def test_reading_a_turn_again(talker):
    chat = talker.new_chat()
    done, failed = talker.ask(chat, "!say yes").json, talker.ask(chat, "!500 no").json
    assert talker.turn(done["turn_id"]).json == done
    assert talker.turn(failed["turn_id"]).json == failed
    refused(talker.turn(request_id()), 404, "TURN_NOT_FOUND")


# While the model works


def test_no_transaction_is_open_while_the_model_works(talker):
    chat = talker.new_chat()
    stream = talker.stream(chat, "!hang-after 1")
    stream.next("delta")
    # BEGIN IMMEDIATE fails when somebody is writing, and a checkpoint stays incomplete when somebody is reading.
    execute(talker.app, "BEGIN IMMEDIATE")
    talker.post(SESSIONS, {})
    assert execute(talker.app, "PRAGMA wal_checkpoint(TRUNCATE)")[0][0] == 0
    assert talker.messages(chat)[0]["content"] == "!hang-after 1"


def test_a_reader_sees_the_answer_and_the_end_of_the_turn_or_neither(talker):
    chat = talker.new_chat()
    state = (
        "SELECT t.status, (SELECT count(*) FROM chat_messages m WHERE m.id = t.assistant_message_id), "
        "(SELECT count(*) FROM chat_messages m WHERE m.session_id = t.session_id AND m.role = 'assistant') "
        "FROM chat_turns t WHERE t.session_id = ?"
    )
    stream = talker.stream(chat, "!words 20 40")
    seen = {execute(talker.app, state, chat)[0]}
    while execute(talker.app, state, chat)[0][0] == "pending":
        seen.add(execute(talker.app, state, chat)[0])
    stream.rest()
    assert seen | {execute(talker.app, state, chat)[0]} == {("pending", 0, 0), ("completed", 1, 1)}


# When there is no answer

FAULTS = [
    ("!500 The model is on fire", "backend", "The model is on fire"),
    ("!401 Wrong key", "backend", "Wrong key"),
    ("!429 7 Slow down", "backend", "Slow down"),
    ("!error-in-stream Out of memory", "backend", "Out of memory"),
    ("!html", "backend", "web page"),
    ("!empty-choices", "backend", "model server"),
    ("!malformed", "backend", "model server"),
    ("!half 3", "backend", "broke off"),
    ("!reset", "connection", "127.0.0.1"),
    ("!say   ", "backend", "empty answer"),
]


@pytest.mark.parametrize(("query", "kind", "message"), FAULTS)
def test_a_failed_turn_says_why_and_leaves_a_record(talker, query, kind, message):
    chat = talker.new_chat()
    before = talker.show(chat)
    response = talker.ask(chat, query)
    assert response.status_code == 200
    body = response.json
    assert (body["status"], body["assistant_message"]) == ("failed", None)
    assert (body["error"]["code"], body["error"]["kind"]) == ("LLM_ERROR", kind)
    assert message in body["error"]["message"]
    assert not any(icon in body["error"]["message"] for icon in "🔌❌⏱")
    (listed,) = talker.messages(chat)
    assert listed == body["user_message"]
    assert (listed["content"], listed["metadata"]["error"]["code"]) == (query, "LLM_ERROR")
    assert (talker.show(chat)["message_count"], talker.row(chat)["last_message_preview"]) == (0, None)
    assert talker.show(chat)["title"] == before["title"]
    ((status, detail, completed),) = execute(talker.app, "SELECT status, error_detail, completed_at FROM chat_turns")
    assert status == "failed"
    assert message in detail
    assert completed is not None


def test_the_plain_reason_is_the_servers_own(talker):
    error = talker.ask(talker.new_chat(), "!503 模型正在加载").json["error"]
    assert error["message"] == "模型正在加载"


def test_a_model_server_that_is_not_there(make_app):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
    client = Talker(make_app(llm_base_url=url, llm_model="m").test_client())
    body = client.ask(client.new_chat(), "hello").json
    assert (body["status"], body["error"]["code"], body["error"]["kind"]) == ("failed", "LLM_ERROR", "connection")


@pytest.mark.parametrize("query", ["!hang", "!hang-after 2", "!sleep-headers 5 !say late"])
def test_a_model_server_that_keeps_silent(make_app, model_server, query):
    app = make_app(llm_base_url=model_server.base_url, llm_model="m", llm_timeout=0.2)
    client = Talker(app.test_client())
    body = client.ask(client.new_chat(), query).json
    assert (body["status"], body["error"]["code"], body["error"]["kind"]) == ("failed", "LLM_ERROR", "timeout")


def test_what_had_arrived_of_a_failed_answer_is_kept_with_the_turn(talker):
    chat = talker.new_chat()
    body = talker.ask(chat, "!half 3").json
    assert body["partial"] == "w1 w2 w3"
    assert talker.turn(body["turn_id"]).json["partial"] == "w1 w2 w3"
    assert len(talker.messages(chat)) == 1


def test_a_failed_question_is_no_part_of_the_chat_that_follows(talker):
    chat = talker.new_chat()
    talker.talk(chat, "!say one")
    talker.ask(chat, "!500 no")
    talker.talk(chat, "!say two")
    assert [entry["content"] for entry in talker.prompts[-1][1:]] == ["!say one", "one", "!say two"]
    assert (talker.show(chat)["message_count"], talker.row(chat)["last_message_preview"]) == (4, "two")
    assert len(talker.messages(chat)) == 5


def test_an_unforeseen_fault_is_a_failed_turn_too(talker, monkeypatch, caplog):
    def stumble(*_):
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr("adapters.providers.openai.OpenAI.stream", stumble)
    chat = talker.new_chat()
    body = talker.ask(chat, "hello").json
    assert (body["status"], body["error"]["code"]) == ("failed", "INTERNAL_ERROR")
    assert "secret detail" not in json.dumps(body)
    assert "secret detail" in caplog.text
    monkeypatch.undo()
    talker.talk(chat, "!say fine again")


# Turns that a dead process left


def leave_pending(app, chat):
    turn = request_id()
    question = add_message(app, chat, "user", "left alone", "2026-01-01T00:00:00.000Z")
    execute(
        app,
        "INSERT INTO chat_turns (id, session_id, payload_hash, user_message_id, created_at) VALUES (?, ?, 'x', ?, ?)",
        *(turn, chat, question, "2026-01-01T00:00:00.000Z"),
    )
    return turn


@pytest.mark.parametrize("touch", ["turn", "ask", "stop", "attach", "restart"])
def test_a_turn_that_a_dead_process_left_does_not_block_its_chat(make_app, talker, touch):
    chat = talker.new_chat()
    turn = leave_pending(talker.app, chat)
    match touch:
        case "turn":
            assert talker.turn(turn).json["status"] == "failed"
        case "ask":
            talker.talk(chat, "!say hello")
        case "stop":
            assert talker.stop(turn).json["status"] == "failed"
        case "attach":
            assert talker.attach(turn).rest()[-1].data["response"]["status"] == "failed"
        case "restart":
            make_app()
    assert execute(talker.app, "SELECT status FROM chat_turns WHERE id = ?", turn) == [("failed",)]
    body = talker.turn(turn).json
    assert (body["error"]["code"], body["assistant_message"]) == ("INTERRUPTED", None)
    assert body["user_message"]["content"] == "left alone"
    assert body["user_message"]["metadata"]["error"]["code"] == "INTERRUPTED"
    talker.talk(chat, "!say on we go")


def test_a_chat_deleted_while_it_is_being_answered(talker):
    chat = talker.new_chat()
    stream = talker.stream(chat, "!words 60 60")
    stream.next("delta")
    assert talker.delete(f"{SESSIONS}/{chat}", hard="true").status_code == 200
    assert stream.rest()[-1].data["response"]["status"] == "failed"
    wait_for(lambda: everything_in(talker.app) == [[], [], []])
