"""Streams: an answer while it is written, listened to again, by many, and stopped."""

from __future__ import annotations

import time

import pytest

from tests.api.talk import (
    SESSIONS,
    Stream,
    at_once,
    deltas,
    everything_in,
    execute,
    final,
    refused,
    request_id,
    text_of,
    types,
    wait_for,
)
from tests.model_server import CHINESE, numbered


def begin(talker, query):
    """A turn that is running; gives its chat, its stream and its id."""
    chat = talker.new_chat()
    stream = talker.stream(chat, query)
    return chat, stream, stream.next("start").data["turn_id"]


# From start to final


def test_the_events_of_a_turn(talker):
    chat, turn = talker.new_chat(), request_id()
    stream = talker.stream(chat, "!words 30 300", request_id=turn)
    events = stream.rest()
    assert types(events) == ["start", "delta", "sources", "final"]
    question, answer = talker.messages(chat)
    assert events[0].data == {"type": "start", "turn_id": turn, "user_message": question}
    assert events[-2].data == {"type": "sources", "sources": answer["metadata"]["sources"]}
    assert final(events) == talker.turn(turn).json
    assert final(events)["assistant_message"] == answer
    assert stream.field_names == {"data"}, "clients of this stream know data: lines only"


def test_deltas_are_numbered_from_one_without_a_gap(talker):
    events = talker.stream(talker.new_chat(), "!words 40 400").rest()
    numbers = [number for number, _ in deltas(events)]
    assert len(numbers) > 1
    assert numbers == list(range(1, len(numbers) + 1))
    for event in events:
        if event.type == "delta":
            assert set(event.data) == {"type", "delta", "seq"}
            assert event.data["delta"] != ""


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ("!words 200", "".join(numbered(200))),
        ("!say one\ntwo\r\nthree\rfour\n\nfive", "one\ntwo\r\nthree\rfour\n\nfive"),
        ("!say data: x\n\nid: 5\n\n: comment", "data: x\n\nid: 5\n\n: comment"),
        ("!say \u2028\u2029\x85 \t  👩‍👩‍👧‍👦\u0301", "\u2028\u2029\x85 \t  👩‍👩‍👧‍👦\u0301"),
        ("!say   spaces around  ", "  spaces around  "),
        ("!split-utf8", CHINESE),
        ("!trickle 慢慢来", "慢慢来"),
        ("!plain all at once", "all at once"),
        ("!noisy with comments", "with comments"),
    ],
)
def test_what_was_streamed_is_what_is_stored(talker, query, answer):
    chat = talker.new_chat()
    events = talker.stream(chat, query).rest()
    assert text_of(events) == answer
    assert final(events)["assistant_message"]["content"] == answer
    assert talker.messages(chat)[1]["content"] == answer


def test_words_arrive_while_the_model_still_writes(talker):
    chat, stream, turn = begin(talker, "!hang-after 3")
    assert stream.next("delta").data["seq"] == 1
    assert talker.turn(turn).json["status"] == "pending"
    assert len(talker.messages(chat)) == 1


@pytest.mark.parametrize(
    ("query", "kinds"), [("!500 no", ["start", "final"]), ("!half 2", ["start", "delta", "final"])]
)
def test_a_failed_turn_ends_with_final_too(talker, query, kinds):
    chat = talker.new_chat()
    events = talker.stream(chat, query).rest()
    assert types(events) == kinds
    response = final(events)
    assert (response["status"], response["assistant_message"], response["error"]["code"]) == (
        "failed",
        None,
        "LLM_ERROR",
    )
    assert response == talker.turn(response["turn_id"]).json
    assert talker.messages(chat)[0]["metadata"]["error"]["code"] == "LLM_ERROR"


def test_a_stream_is_kept_open_while_nothing_comes(talker, monkeypatch):
    monkeypatch.setattr("models.run.IDLE_SECONDS", 0.02)
    _, stream, _ = begin(talker, "!sleep-headers 0.3 !say at last")
    events = stream.rest()
    assert stream.comments
    assert types(events) == ["delta", "sources", "final"]
    assert text_of(events) == "at last"


def test_what_cannot_begin_is_an_ordinary_error(talker):
    chat = talker.new_chat()
    path = f"{SESSIONS}/{chat}/turn:stream"
    refused(talker.post(path, {"query": "x"}), 400, "MISSING_REQUEST_ID")
    refused(talker.post(path, {"request_id": request_id()}), 400, "EMPTY_QUERY")
    refused(talker.post(path, {"request_id": request_id(), "query": "x", "mode": "y"}), 400, "INVALID_MODE")
    refused(
        talker.post(f"{SESSIONS}/nowhere/turn:stream", {"request_id": request_id(), "query": "x"}),
        404,
        "SESSION_NOT_FOUND",
    )
    assert talker.messages(chat) == []


# The same request_id rules


@pytest.mark.parametrize("query", ["!say yes", "!500 no"])
def test_a_replay_over_a_stream(talker, query):
    chat, turn = talker.new_chat(), request_id()
    first = talker.stream(chat, query, request_id=turn).rest()
    asked, rows = len(talker.prompts), everything_in(talker.app)
    again = talker.stream(chat, query, request_id=turn).rest()
    assert final(again) == final(first)
    assert again[0].data["turn_id"] == turn
    assert deltas(again) == []
    plain = talker.post(f"{SESSIONS}/{chat}/turn", {"request_id": turn, "query": query})
    assert plain.json == final(first)
    assert (len(talker.prompts), everything_in(talker.app)) == (asked, rows)


def test_conflicts_over_a_stream(talker):
    chat, _, turn = begin(talker, "!hang-after 1")
    path = f"{SESSIONS}/{chat}/turn:stream"
    same = {"request_id": turn, "query": "!hang-after 1"}
    assert refused(talker.post(path, same), 409, "IDEMPOTENCY_CONFLICT")["existing_status"] == "pending"
    assert refused(talker.post(path, {**same, "query": "other"}), 409, "IDEMPOTENCY_CONFLICT")
    another = {"request_id": request_id(), "query": "x"}
    assert refused(talker.post(path, another), 409, "TURN_IN_PROGRESS") == {"turn_id": turn}


# The generation belongs to the server


@pytest.mark.parametrize("after", ["start", "delta"])
def test_a_closed_tab_does_not_lose_the_answer(talker, after):
    chat = talker.new_chat()
    stream = talker.stream(chat, "!words 20 200")
    stream.next(after)
    stream.close()
    wait_for(lambda: len(talker.messages(chat)) == 2)
    assert talker.messages(chat)[1]["content"] == "".join(numbered(20))


def test_attaching_to_a_running_turn_from_the_start(talker):
    chat, stream, turn = begin(talker, "!words 60 60")
    stream.next("delta")
    stream.close()
    events = talker.attach(turn).rest()
    assert types(events) == ["start", "delta", "sources", "final"]
    assert events[0].data["user_message"] == talker.messages(chat)[0]
    assert [number for number, _ in deltas(events)] == list(range(1, len(deltas(events)) + 1))
    assert text_of(events) == "".join(numbered(60)) == final(events)["assistant_message"]["content"]
    assert all(event.id is not None for event in events)
    assert [event.id for event in events if event.type == "delta"] == [str(number) for number, _ in deltas(events)]


@pytest.mark.parametrize("how", ["after", "Last-Event-ID"])
def test_attaching_resumes_behind_what_was_seen(talker, how):
    _, stream, turn = begin(talker, "!words 60 60")
    seen = [stream.next("delta") for _ in range(3)]
    stream.close()
    last = seen[-1].data["seq"]
    resumed = talker.attach(turn, after=last) if how == "after" else talker.attach(turn, {"Last-Event-ID": str(last)})
    events = resumed.rest()
    assert types(events) == ["delta", "sources", "final"]
    assert deltas(events)[0][0] == last + 1
    assert text_of(seen) + text_of(events) == "".join(numbered(60))


def test_a_browser_that_lost_its_connection_after_start_misses_nothing(talker):
    _, stream, turn = begin(talker, "!words 40 40")
    stream.close()
    first = talker.attach(turn)
    start = first.next("start")
    first.close()
    events = talker.attach(turn, {"Last-Event-ID": start.id}).rest()
    assert text_of(events) == "".join(numbered(40))


@pytest.mark.parametrize("garbage", ["", "x", "-1", "1.5", "٣", "9" * 5000, "final", "1 2", "0x10", "null"])
def test_a_last_event_id_that_says_nothing_means_from_the_start(talker, garbage):
    _, stream, turn = begin(talker, "!hang-after 5")
    stream.next("delta")
    attached = talker.attach(turn, {"Last-Event-ID": garbage.encode().decode("latin-1")})
    talker.stop(turn)
    events = attached.rest()
    assert types(events) == ["start", "delta", "sources", "final"]
    assert text_of(events) == final(events)["assistant_message"]["content"]


@pytest.mark.parametrize("after", ["x", "-1", "1.5", "", "9" * 30, "9" * 5000])
def test_an_after_that_cannot_be(talker, after):
    done = talker.ask(talker.new_chat(), "!say x").json["turn_id"]
    response = talker.get(f"/api/chat/turns/{done}/stream", after=after)
    assert refused(response, 422, "VALIDATION_ERROR")["errors"][0]["field"] == "after"


def test_an_after_beyond_the_end_still_gets_the_final(talker):
    _, stream, turn = begin(talker, "!words 5 50")
    stream.close()
    events = talker.attach(turn, after=10**6).rest()
    assert types(events) == ["sources", "final"]
    assert final(events)["status"] == "completed"


def test_several_tabs_hear_the_same(talker):
    _, stream, turn = begin(talker, "!words 60 60")
    stream.next("delta")
    tabs = [talker.another_tab() for _ in range(6)]
    heard = at_once(
        stream.rest, *(lambda tab=tab, after=n: tab.attach(turn, after=after).rest() for n, tab in enumerate(tabs))
    )
    whole = talker.turn(turn).json
    for after, events in enumerate(heard[1:]):
        assert deltas(events)[0][0] == after + 1
        assert final(events) == whole
    assert text_of(heard[1]) == whole["assistant_message"]["content"] == "".join(numbered(60))


@pytest.mark.parametrize("query", ["!say done", "!half 2"])
@pytest.mark.parametrize("options", [{}, {"after": 0}, {"after": 7}, {"headers": {"Last-Event-ID": "3"}}])
def test_a_turn_long_finished_answers_with_its_final_at_once(talker, query, options):
    whole = talker.ask(talker.new_chat(), query).json
    began = time.monotonic()
    events = talker.attach(whole["turn_id"], **options).rest()
    assert time.monotonic() - began < 8
    assert types(events) in (["sources", "final"], ["final"])
    assert final(events) == whole


def test_attaching_to_a_turn_that_is_not_there(talker):
    refused(talker.get(f"/api/chat/turns/{request_id()}/stream"), 404, "TURN_NOT_FOUND")


def test_listening_never_starts_anything(talker):
    whole = talker.ask(talker.new_chat(), "!say once").json
    asked, rows = len(talker.prompts), everything_in(talker.app)
    for _ in range(3):
        talker.attach(whole["turn_id"]).rest()
    assert (len(talker.prompts), everything_in(talker.app)) == (asked, rows)


# Stopping


@pytest.mark.parametrize("query", ["!hang-after 3", "!words 1000 50"])
def test_stop_keeps_what_was_written(talker, query):
    chat, stream, turn = begin(talker, query)
    heard = [stream.next("delta")]
    began = time.monotonic()
    stopped = talker.another_tab().stop(turn)
    assert time.monotonic() - began < 4.5
    assert stopped.status_code == 200
    assert (stopped.json["turn_id"], stopped.json["status"], stopped.json["error"]) == (turn, "completed", None)
    heard += stream.rest()
    answer = talker.messages(chat)[1]
    assert answer["metadata"]["stopped"] is True
    assert {"mode", "sources", "model", "usage", "latency_ms"} <= set(answer["metadata"])
    assert answer["content"] == text_of(heard)
    assert answer["content"].startswith("w1 ")
    assert final(heard) == stopped.json == talker.turn(turn).json
    assert final(heard)["assistant_message"] == answer
    assert talker.show(chat)["message_count"] == 2


def test_a_stopped_answer_is_part_of_the_chat(talker):
    chat, stream, turn = begin(talker, "!hang-after 3")
    stream.next("delta")
    talker.stop(turn)
    talker.talk(chat, "!say on")
    assert [entry["content"] for entry in talker.prompts[-1][1:]] == ["!hang-after 3", "w1 w2 w3", "!say on"]


@pytest.mark.parametrize("query", ["!hang", "!sleep-headers 20 !say late"])
def test_stop_before_the_first_word_fails_the_turn(talker, query):
    chat, stream, turn = begin(talker, query)
    stopped = talker.stop(turn).json
    assert (stopped["status"], stopped["assistant_message"]) == ("failed", None)
    assert stopped["error"]["code"] == "STOPPED"
    assert final(stream.rest()) == stopped
    (question,) = talker.messages(chat)
    assert (question["content"], question["metadata"]["error"]["code"]) == (query, "STOPPED")
    assert talker.show(chat)["message_count"] == 0
    talker.talk(chat, "!say again")


def test_stopping_ends_the_call_of_the_model_server(talker):
    _, stream, turn = begin(talker, "!words 1000 50")
    stream.next("delta")
    record = talker.model.log[-1]
    talker.stop(turn)
    wait_for(lambda: record["closed_early"])


def test_stopping_a_plain_turn_from_another_tab(talker):
    chat, turn = talker.new_chat(), request_id()

    def ask():
        return talker.post(f"{SESSIONS}/{chat}/turn", {"request_id": turn, "query": "!hang-after 2"}).json

    def stop():
        tab = talker.another_tab()
        wait_for(lambda: tab.turn(turn).status_code == 200)
        tab.attach(turn).next("delta")
        return tab.stop(turn).json

    answered, stopped = at_once(ask, stop)
    assert answered == stopped
    assert answered["assistant_message"]["content"] == "w1 w2"
    assert answered["assistant_message"]["metadata"]["stopped"] is True


@pytest.mark.parametrize("query", ["!say done", "!500 no"])
def test_stopping_what_has_ended_changes_nothing(talker, query):
    whole = talker.ask(talker.new_chat(), query).json
    rows = everything_in(talker.app)
    response = talker.stop(whole["turn_id"])
    assert (response.status_code, response.json) == (200, whole)
    assert everything_in(talker.app) == rows


def test_stopping_twice_at_once_stops_once(talker):
    chat, stream, turn = begin(talker, "!hang-after 2")
    stream.next("delta")
    first, second = at_once(lambda: talker.another_tab().stop(turn).json, lambda: talker.another_tab().stop(turn).json)
    assert first == second == talker.turn(turn).json
    assert execute(talker.app, "SELECT count(*) FROM chat_messages WHERE session_id = ?", chat) == [(2,)]


def test_stopping_a_turn_that_is_not_there(talker):
    refused(talker.stop(request_id()), 404, "TURN_NOT_FOUND")


def test_many_streams_at_once_keep_to_themselves(talker):
    tabs = [
        (talker.another_tab(), talker.new_chat(), f"!slow 200 {' '.join(f'{n}-{i}' for i in range(20))}")
        for n in range(10)
    ]
    heard = at_once(
        *(lambda tab=tab, chat=chat, query=query: tab.stream(chat, query).rest() for tab, chat, query in tabs)
    )
    for (_, chat, query), events in zip(tabs, heard, strict=True):
        assert text_of(events) == query.removeprefix("!slow 200 ")
        assert talker.messages(chat)[1]["content"] == text_of(events)


def test_a_stream_needs_no_database_while_it_lasts(talker):
    """Fifteen open streams, and a pool of fewer connections than that: the other requests still get theirs."""
    streams = [talker.stream(talker.new_chat(), "!hang-after 1") for _ in range(15)]
    for stream in streams:
        stream.next("delta")
    listeners = [
        Stream(talker.get(f"/api/chat/turns/{turn}/stream"))
        for (turn,) in execute(talker.app, "SELECT id FROM chat_turns")
    ]
    for listener in listeners:
        listener.next("delta")
    assert len(talker.get(SESSIONS).json["sessions"]) == 15
