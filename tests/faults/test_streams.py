"""Listeners come and go, are slow, or sit at another process; processes are stopped and frozen. The answer goes on."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import time
from collections import Counter
from urllib.parse import urlsplit

import pytest
import requests

from tests.faults.client import Client, Listener, in_background, new_request, question
from tests.model_server import numbered


def words(count: int) -> str:
    return "".join(numbered(count))


def asked_for(model, query: str) -> list[dict]:
    """What the model server wrote down about this question."""
    return [record for record in model.log if record["body"] and record["body"]["messages"][-1]["content"] == query]


# One process


def test_a_closed_tab_loses_nothing(serve, ledger):
    client = serve()
    chat, request = client.new_chat(), new_request()
    client.ask_streamed(chat, "!words 20 10", request).wait_for_text("w3").close()
    assert client.turn(request)["status"] == "pending"
    assert client.ended(request)["assistant_message"]["content"] == words(20)
    ledger.check()


def test_a_program_that_hangs_up_loses_nothing(serve, ledger):
    """The plain turn, whose client does not wait for the answer."""
    client = serve()
    chat, request = client.new_chat(), new_request()
    with pytest.raises(requests.Timeout):
        client.post_turn(chat, "!words 20 10", request, timeout=0.7)
    assert client.turn(request)["status"] == "pending"
    assert client.ended(request)["assistant_message"]["content"] == words(20)
    assert client.ask(chat, "!words 20 10", request)["assistant_message"]["content"] == words(20)
    ledger.check()


def test_listeners_that_come_later_get_everything_in_order_and_once(serve):
    client = serve()
    chat, request = client.new_chat(), new_request()
    first = client.ask_streamed(chat, "!words 30 15", request).wait_for_text("w5")
    second, third = client.attach(request), client.attach(request)
    late = client.attach(request, after=3)
    resumed = Listener(
        lambda: client.server.get(f"/api/chat/turns/{request}/stream", headers={"Last-Event-ID": "2"}, stream=True)
    ).begin()
    for listener in (first, second, third, late, resumed):
        listener.wait()
        assert listener.final == first.final
    assert first.text == words(30) == first.final["assistant_message"]["content"]
    for listener in (second, third):
        assert listener.started["user_message"] == first.started["user_message"]
        assert listener.of_type("delta") == first.of_type("delta")
    assert late.of_type("delta") == first.of_type("delta")[3:]
    assert resumed.of_type("delta") == first.of_type("delta")[2:]


def test_a_finished_turn_answers_with_its_end_at_once(serve):
    client = serve()
    chat, request = client.new_chat(), new_request()
    turn = client.ask(chat, "!say done", request)
    for listener in (client.attach(request), client.attach(request, after=1)):
        assert listener.wait().final == turn
        assert listener.deltas == []


def test_sending_twice_asks_once_and_the_first_goes_on(serve, model, ledger):
    client = serve()
    chat, request = client.new_chat(), new_request()
    first = client.ask_streamed(chat, "!words 30 10", request).wait_for_text("w3")
    again = client.post_turn(chat, "!words 30 10", request)
    assert (again.status_code, again.json()["detail"]["code"]) == (409, "IDEMPOTENCY_CONFLICT")
    other = client.post_turn(chat, "!say another")
    assert (other.status_code, other.json()["detail"]["code"]) == (409, "TURN_IN_PROGRESS")
    assert other.json()["detail"]["extra"]["turn_id"] == request
    assert first.wait().text == words(30) == first.final["assistant_message"]["content"]
    assert len(model.requests) == 1
    ledger.check()


class SlowReader:
    """Asks over a socket with almost no room, and reads nothing until it is told to."""

    def __init__(self, client: Client, chat: str, query: str, request: str) -> None:
        address = urlsplit(client.server.url)
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        self.socket.connect((address.hostname, address.port))
        body = json.dumps(question(query, request)).encode()
        head = f"POST /api/chat/sessions/{chat}/turn:stream HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n"
        self.socket.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def read_to_the_end(self) -> list[dict]:
        with self.socket, self.socket.makefile("rb") as file:
            return [json.loads(line[6:]) for line in file if line.startswith(b"data: ")]


def test_a_slow_reader_slows_nobody(serve):
    client = serve(LLM_MAX_ANSWER_MB=6)
    chat, request = client.new_chat(), new_request()
    slow = SlowReader(client, chat, "!endless", request)
    client.server.wait_for(lambda: client.server.get(f"/api/chat/turns/{request}").ok)
    fast = client.attach(request)
    assert client.ask(client.new_chat(), "!say quick")["status"] == "completed"
    turn = client.ended(request)
    assert turn["error"]["message"].startswith("The answer is longer than")
    assert len(turn["partial"]) > 4_000_000, "far more than fits on its way to somebody who does not read"
    assert fast.wait().final == turn
    events = slow.read_to_the_end()
    deltas = [event for event in events if event["type"] == "delta"]
    assert [event["seq"] for event in deltas] == list(range(1, len(deltas) + 1))
    assert "".join(event["delta"] for event in deltas) == turn["partial"]
    assert events[-1]["response"] == turn


def test_stop_hangs_up_on_the_model_at_once(serve, model, ledger):
    client = serve()
    chat, request = client.new_chat(), new_request()
    heard = client.ask_streamed(chat, "!words 300 10", request).wait_for_text("w4")
    stopped = client.stop(request)
    assert stopped["status"] == "completed"
    assert stopped["assistant_message"]["metadata"]["stopped"] is True
    assert words(300).startswith(stopped["assistant_message"]["content"])
    assert model.wait_for(lambda: model.log[-1]["closed_early"], 1)
    assert heard.wait().final == stopped
    assert heard.text == stopped["assistant_message"]["content"]
    ledger.check()


def test_stop_before_the_first_word(serve, model, ledger):
    client = serve()
    chat, request = client.new_chat(), new_request()
    heard = client.ask_streamed(chat, "!hang", request)
    client.server.wait_for(lambda: model.requests)
    stopped = client.stop(request)
    assert (stopped["status"], stopped["error"]["code"]) == ("failed", "STOPPED")
    assert stopped["user_message"]["metadata"]["error"]["code"] == "STOPPED"
    assert model.wait_for(lambda: model.log[-1]["closed_early"], 1)
    assert heard.wait().final == stopped
    assert client.ask(chat, "!say on")["status"] == "completed"
    ledger.check()


def test_a_chat_deleted_while_it_is_answered_harms_no_other(serve, ledger):
    here, there = serve(), serve()
    doomed, other = here.new_chat(), here.new_chat()
    gone = here.ask_streamed(doomed, "!words 40 10").wait_for_text("w2")
    request = new_request()
    kept = here.ask_streamed(other, "!words 40 10", request).wait_for_text("w2")
    assert requests.delete(f"{here.server.url}/api/chat/sessions/{doomed}?hard=true", timeout=10).ok
    # Seen from the other process, the other answer still grows: its pieces are saved and its lease renewed.
    there.attach(request).wait_for_text("w20")
    assert gone.wait().final["status"] == "failed"
    assert kept.wait().final["assistant_message"]["content"] == words(40)
    assert not [line for line in here.server.output if "Traceback" in line]
    ledger.check()


# Two processes on one data directory


def test_the_other_process_hears_the_whole_answer(serve):
    here, there = serve(), serve()
    chat, request = here.new_chat(), new_request()
    first = here.ask_streamed(chat, "!words 40 15", request).wait_for_text("w5")
    other, late = there.attach(request), there.attach(request, after=3)
    first.wait()
    for listener in (other, late):
        assert listener.wait().final == first.final
    assert other.text == words(40) == first.text
    assert other.numbers == list(range(1, len(other.deltas) + 1))
    assert late.text == "".join(first.deltas[3:])
    seen = [moment - other.times[0] for moment in other.times]
    assert len([moment for moment in seen if 0.2 < moment < 2.0]) > 3, "it came while it grew, not in the end"


def test_a_listener_that_knows_more_than_the_database_hears_nothing_twice(serve):
    """It heard the newest words where they are written, and goes on listening elsewhere before they were saved."""
    here, there = serve(), serve()
    for heard_so_far in ("w16", "w20", "w24", "w28"):
        chat, request = here.new_chat(), new_request()
        first = here.ask_streamed(chat, "!words 60 40", request).wait_for_text(heard_so_far)
        known = max(first.numbers)
        late = there.attach(request, after=known).wait()
        assert late.text in {"".join(first.wait().deltas[known:]), ""}, "the end may come first, with all of it"
        assert late.final == first.final


def test_the_other_process_hears_a_failure_with_all_that_came_before(serve):
    here, there = serve(LLM_TIMEOUT=2), serve()
    chat, request = here.new_chat(), new_request()
    first = here.ask_streamed(chat, "!hang-after 12", request).wait_for_text("w12")
    other = there.attach(request).wait()
    assert other.final == first.wait().final
    assert other.text == first.text == other.final["partial"] == words(12)


def test_stop_through_the_other_process(serve, model, ledger):
    here, there = serve(), serve()
    chat, request = here.new_chat(), new_request()
    heard = here.ask_streamed(chat, "!words 300 10", request).wait_for_text("w4")
    began = time.monotonic()
    there.stop(request)
    assert model.wait_for(lambda: model.log[-1]["closed_early"], 3)
    turn = there.ended(request, 3)
    assert time.monotonic() - began < 3
    assert turn["assistant_message"]["metadata"]["stopped"] is True
    assert heard.wait().text == turn["assistant_message"]["content"]
    assert heard.final == turn
    ledger.check()


def test_one_turn_per_chat_over_both_processes(serve, model, ledger):
    here, there = serve(), serve()
    for _ in range(5):
        chat = here.new_chat()
        tries = [in_background(client.post_turn, chat, "!words 10 15") for client in (here, there) * 4]
        answers = [attempt.result(20) for attempt in tries]
        codes = Counter(answer.json().get("detail", {}).get("code", answer.json().get("status")) for answer in answers)
        assert codes == {"completed": 1, "TURN_IN_PROGRESS": 7}
        assert len(here.messages(chat)) == 2
    assert len(model.requests) == 5
    ledger.check()


def test_one_winner_per_request_over_both_processes(serve, model, ledger):
    here, there = serve(), serve()
    for _ in range(5):
        chat, request = here.new_chat(), new_request()
        tries = [in_background(client.post_turn, chat, "!words 10 15", request) for client in (here, there) * 4]
        answers = [attempt.result(20) for attempt in tries]
        codes = Counter(answer.json().get("detail", {}).get("code", answer.json().get("status")) for answer in answers)
        assert codes == {"completed": 1, "IDEMPOTENCY_CONFLICT": 7}
        assert here.ask(chat, "!words 10 15", request) == there.ask(chat, "!words 10 15", request)
        assert [message["content"] for message in there.messages(chat)] == ["!words 10 15", words(10)]
    assert len(model.requests) == 5
    ledger.check()


def test_a_chat_of_a_killed_process_is_free_at_once_in_the_other(serve, ledger):
    here, there = serve(), serve()
    chat, request = here.new_chat(), new_request()
    here.ask_streamed(chat, "!words 300 10", request).wait_for_text("w8")
    listener = there.attach(request).wait_for_text("w4")
    here.server.kill()
    assert there.ask(chat, "!say mine")["status"] == "completed"
    turn = there.turn(request)
    assert turn["error"]["code"] == "INTERRUPTED"
    assert listener.wait().final == turn
    assert listener.text == turn["partial"]
    ledger.check()


# Stopping and freezing processes


def test_told_to_end_it_lets_an_answer_finish(serve, ledger):
    client = serve()
    chat, request = client.new_chat(), new_request()
    heard = client.ask_streamed(chat, "!words 20 10", request).wait_for_text("w3")
    os.kill(client.server.process.pid, signal.SIGTERM)
    assert heard.wait().text == words(20) == heard.final["assistant_message"]["content"]
    client.server.wait_until_dead()
    assert client.server.process.returncode == 0
    ledger.check()

    assert serve().turn(request) == heard.final


def test_told_to_end_while_nobody_listens(serve, ledger):
    client = serve()
    chat, request = client.new_chat(), new_request()
    client.ask_streamed(chat, "!words 300 10", request).wait_for_text("w8").close()
    os.kill(client.server.process.pid, signal.SIGTERM)
    client.server.wait_until_dead()
    ledger.check_file()

    client = serve()
    turn = client.turn(request)
    assert turn["status"] in {"completed", "failed"}
    assert words(300).startswith(turn["partial"] if turn["status"] == "failed" else "w1 ")
    assert client.ask(chat, "!say on")["status"] == "completed"
    ledger.check()


def freeze(client: Client, between_writes_of) -> None:
    """Stops the whole process group, though not in the middle of a write, which would hold up every other writer."""
    lock = os.open(between_writes_of / "chat.db.lock", os.O_RDWR)
    try:
        while True:
            os.killpg(client.server.process.pid, signal.SIGSTOP)
            time.sleep(0.05)
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.killpg(client.server.process.pid, signal.SIGCONT)
                time.sleep(0.05)
    finally:
        os.close(lock)


def test_a_frozen_process_loses_the_chat_and_doubles_nothing_when_it_wakes(serve, data_dir, ledger):
    here, there = serve(TURN_LEASE_SECONDS=2), serve(TURN_LEASE_SECONDS=2)
    chat, request = here.new_chat(), new_request()
    heard = here.ask_streamed(chat, "!words 25 5", request).wait_for_text("w5")
    freeze(here, data_dir)
    blocked = there.post_turn(chat, "!say mine")
    assert (blocked.status_code, blocked.json()["detail"]["code"]) == (409, "TURN_IN_PROGRESS")
    taken_over = there.ended(request, 10)
    assert taken_over["error"]["code"] == "INTERRUPTED"
    assert words(25).startswith(taken_over["partial"])
    assert there.ask(chat, "!say mine")["assistant_message"]["content"] == "mine"

    os.killpg(here.server.process.pid, signal.SIGCONT)
    final = heard.wait().final
    assert (final["status"], final["error"]["code"]) == ("failed", "INTERRUPTED")
    time.sleep(1)  # three beats: whatever the woken process still wants to write, it has
    for client in (here, there):
        assert client.turn(request) == taken_over
        assert [message["content"] for message in client.messages(chat)] == ["!words 25 5", "!say mine", "mine"]
        assert client.message_count(chat) == 2
    assert here.ask(chat, "!say awake")["status"] == "completed"
    ledger.check()


def test_a_process_frozen_in_two_chats_wakes_and_goes_on_with_new_ones(serve, data_dir, ledger):
    """What it lost must not keep its beat from what it has: new answers are still saved and heard elsewhere."""
    here, there = serve(TURN_LEASE_SECONDS=2), serve(TURN_LEASE_SECONDS=2)
    lost, deleted = here.new_chat(), here.new_chat()
    requests_lost = [new_request(), new_request()]
    listeners = [
        here.ask_streamed(chat, "!words 40 5", request).wait_for_text("w3")
        for chat, request in zip((lost, deleted), requests_lost, strict=True)
    ]
    freeze(here, data_dir)
    for request in requests_lost:
        there.ended(request, 10)
    assert requests.delete(f"{there.server.url}/api/chat/sessions/{deleted}?hard=true", timeout=10).ok
    os.killpg(here.server.process.pid, signal.SIGCONT)

    chat, request = here.new_chat(), new_request()
    new = here.ask_streamed(chat, "!words 30 10", request).wait_for_text("w2")
    assert there.attach(request).wait_for_text("w10", 5).wait().text == words(30)
    assert new.wait().text == words(30)
    for listener in listeners:
        assert listener.wait().final["status"] == "failed"
    ledger.check()
