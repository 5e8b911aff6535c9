"""Killed at every step of a turn, at random, and in parts: what was acknowledged is there, and nothing is half done."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from typing import Any

import pytest
import requests

from tests.faults.client import Client, Listener, new_request
from tests.faults.ledger import Ledger
from tests.model_server import ModelServer

KNIFE = [sys.executable, "tests/faults/server_with_faults.py"]
WORDS = "one two three four five six seven eight nine ten"
SLOW = f"!slow 12 {WORDS}"

NEVER_ASKED = ["before the claim is written", "after the claim is written", "before the claim's commit"]
INTERRUPTED = [
    "after the claim's commit",
    "before the model is asked",
    "after the first piece",
    "after four pieces",
    "before pieces are saved",
    "after pieces were saved",
    "before the answer is stored",
    "before the answer's commit",
]
FAILING = ["before the failure is stored", "before the failure's commit", "after the failure's commit"]


def killed_while_asking(client: Client, chat: str, query: str, request: str, streamed: bool) -> Listener | None:
    """Asks, and comes back when the server is dead. What was heard until then."""
    heard = None
    if streamed:
        heard = client.ask_streamed(chat, query, request).wait()
        assert not heard.of_type("final")
    else:
        with pytest.raises(requests.ConnectionError):
            client.post_turn(chat, query, request)
    client.server.wait_until_dead()
    return heard


def check_interrupted(client: Client, chat: str, query: str, request: str) -> dict[str, Any]:
    """Its record explains itself, it counts nowhere, and asking again is answered from the record."""
    turn = client.turn(request)
    assert (turn["status"], turn["error"]["code"], turn["assistant_message"]) == ("failed", "INTERRUPTED", None)
    assert turn["user_message"]["content"] == query
    (listed,) = [message for message in client.messages(chat) if message["id"] == turn["user_message"]["id"]]
    assert listed["metadata"]["error"] == turn["error"]
    assert client.ask(chat, query, request) == turn
    return turn


def check_chat_goes_on(client: Client, chat: str) -> None:
    """At once: nobody waits for the lease of a process that is dead."""
    counted = client.message_count(chat)
    began = time.monotonic()
    turn = client.ask(chat, "!say fine")
    assert turn["status"] == "completed", (turn, client.server.output)
    assert turn["assistant_message"]["content"] == "fine"
    assert time.monotonic() - began < 20  # of the 60 that a lease lasts
    assert client.message_count(chat) == counted + 2


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("step", NEVER_ASKED)
def test_killed_before_the_claim_is_committed_nothing_was_ever_there(serve, ledger, model, step, streamed):
    client = serve(command=KNIFE, KILL_AT=step)
    chat, request = client.new_chat(), new_request()
    heard = killed_while_asking(client, chat, SLOW, request, streamed)
    assert not heard or not heard.events
    ledger.check_file()

    client = serve()
    ledger.check()
    assert client.server.get(f"/api/chat/turns/{request}").status_code == 404
    assert client.messages(chat) == []
    assert model.requests == []
    assert client.ask(chat, SLOW, request)["assistant_message"]["content"] == WORDS
    check_chat_goes_on(client, chat)
    ledger.check()


@pytest.mark.parametrize(
    ("step", "streamed"), [(step, True) for step in INTERRUPTED] + [(step, False) for step in INTERRUPTED[::3]]
)
def test_killed_before_the_answer_is_committed_the_turn_is_interrupted(serve, ledger, model, step, streamed):
    client = serve(command=KNIFE, KILL_AT=step)
    chat, request = client.new_chat(), new_request()
    heard = killed_while_asking(client, chat, SLOW, request, streamed)
    ledger.check_file()
    saved = ledger.rows("SELECT value FROM turn_pieces, json_each(texts) WHERE turn_id = ? ORDER BY seq, key", request)
    saved_text = "".join(text for (text,) in saved)
    asked = len(model.requests)

    client = serve()
    ledger.check()
    turn = check_interrupted(client, chat, SLOW, request)
    assert (turn["partial"] or "") == saved_text
    assert WORDS.startswith(saved_text)
    if step == "after pieces were saved":
        assert saved_text
    if heard and heard.started:
        assert turn["user_message"]["id"] == heard.started["user_message"]["id"]
    assert client.message_count(chat) == 0
    assert len(model.requests) == asked, "the model was asked again"
    check_chat_goes_on(client, chat)
    ledger.check()


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_killed_after_the_answer_is_committed_it_is_there(serve, ledger, model, streamed):
    client = serve(command=KNIFE, KILL_AT="after the answer's commit")
    chat, request = client.new_chat(), new_request()
    killed_while_asking(client, chat, SLOW, request, streamed)
    ledger.check()  # already now: the answer and its turn went into the file together

    client = serve()
    ledger.check()
    turn = client.ask(chat, SLOW, request)
    assert (turn["status"], turn["assistant_message"]["content"]) == ("completed", WORDS)
    assert turn == client.turn(request)
    assert [message["content"] for message in client.messages(chat)] == [SLOW, WORDS]
    assert len(model.requests) == 1
    check_chat_goes_on(client, chat)


@pytest.mark.parametrize("step", FAILING)
def test_killed_while_a_failure_is_recorded(serve, ledger, step):
    client = serve(command=KNIFE, KILL_AT=step)
    chat, request = client.new_chat(), new_request()
    killed_while_asking(client, chat, "!500 no memory", request, streamed=False)
    ledger.check_file()

    client = serve()
    ledger.check()
    if step == "after the failure's commit":
        turn = client.ask(chat, "!500 no memory", request)
        assert turn["error"] == {"code": "LLM_ERROR", "message": "no memory", "kind": "backend"}
        assert turn["user_message"]["metadata"]["error"] == turn["error"]
    else:
        check_interrupted(client, chat, "!500 no memory", request)
    check_chat_goes_on(client, chat)


@pytest.mark.parametrize("step", ["before the failure is stored", "before the failure's commit"])
def test_killed_again_while_recovering(serve, ledger, step):
    client = serve(command=KNIFE, KILL_AT="after pieces were saved")
    chat, request = client.new_chat(), new_request()
    killed_while_asking(client, chat, SLOW, request, streamed=True)
    pieces = ledger.rows("SELECT * FROM turn_pieces")
    assert pieces

    client.server.environment["KILL_AT"] = step
    with pytest.raises(RuntimeError, match="did not start"):
        client.server.start()
    assert client.server.process.returncode == -signal.SIGKILL
    ledger.check_file()
    assert ledger.rows("SELECT * FROM turn_pieces") == pieces

    client = serve()
    ledger.check()
    assert check_interrupted(client, chat, SLOW, request)["partial"]
    check_chat_goes_on(client, chat)


@pytest.mark.parametrize("step", ["after pieces were saved", "before the answer's commit", "after the answer's commit"])
def test_killed_in_a_retry_the_answer_is_the_old_one_or_both(serve, ledger, step):
    client = serve()
    chat = client.new_chat()
    first = client.ask(chat, SLOW)["assistant_message"]
    client.server.kill()

    client = serve(command=KNIFE, KILL_AT=step)
    retry = f"/api/chat/sessions/{chat}/messages/{first['id']}/retry"
    request = {"request_id": new_request()}
    with pytest.raises(requests.ConnectionError):
        client.server.post(retry, request)
    client.server.wait_until_dead()
    ledger.check_file()

    client = serve()
    ledger.check()
    question, answer = client.messages(chat)
    assert "error" not in question["metadata"]
    turn = client.server.post(retry, request).json()
    if step == "after the answer's commit":
        assert turn["status"] == "completed"
        assert [variant["content"] for variant in answer["metadata"]["variants"]] == [WORDS, WORDS]
    else:
        assert (turn["status"], turn["error"]["code"]) == ("failed", "INTERRUPTED")
        assert answer == first
    check_chat_goes_on(client, chat)


def test_only_the_worker_is_killed_and_comes_back_by_itself(serve, ledger):
    client = serve()
    chat, request = client.new_chat(), new_request()
    heard = client.ask_streamed(chat, "!words 200 10", request).wait_for_text("w8")
    before = client.server.worker_pids()
    os.kill(before[0], signal.SIGKILL)
    heard.wait()

    client.server.wait_for(lambda: client.server.get("/health").ok)
    assert client.server.process.poll() is None
    assert set(client.server.worker_pids()).isdisjoint(before)
    turn = check_interrupted(client, chat, "!words 200 10", request)
    assert turn["partial"].startswith("w1 w2")
    check_chat_goes_on(client, chat)
    ledger.check()


class Person(threading.Thread):
    """Asks one question after another in a chat of their own, and writes down what the server said it has."""

    def __init__(self, client: Client, number: int) -> None:
        super().__init__(daemon=True)
        self.client, self.number = client, number
        self.chat = client.new_chat()
        self.asked: dict[str, str] = {}
        self.accepted: dict[str, str] = {}
        self.answered: dict[str, dict[str, Any]] = {}
        self.refused: list[str] = []
        self.heard: list[tuple[str, str]] = []
        self.enough = False

    def run(self) -> None:
        while not self.enough:
            request = new_request()
            query = self.asked[request] = f"!slow 40 {request} was asked by {self.number} and that is all of it"
            while request not in self.answered and not self.enough:
                try:
                    (self._listen if len(self.asked) % 2 else self._ask)(request, query)
                except requests.RequestException:
                    time.sleep(0.02)

    def _ask(self, request: str, query: str) -> None:
        response = self.client.post_turn(self.chat, query, request, timeout=5)
        if response.status_code == 200:
            self.answered[request] = response.json()
        else:
            self.refused.append(response.text)

    def _listen(self, request: str, query: str) -> None:
        heard = self.client.ask_streamed(self.chat, query, request).wait()
        if heard.started:
            self.accepted[request] = heard.started["user_message"]["id"]
        if heard.of_type("final"):
            self.answered[request] = heard.final
            if heard.final["status"] == "completed" and heard.deltas:
                self.heard.append((heard.text, heard.final["assistant_message"]["content"]))
        elif heard.error:
            raise requests.ConnectionError
        elif heard.response is not None and heard.response.status_code != 200:
            self.refused.append(str(heard.response.status_code))


def test_killed_at_random_while_several_people_ask(serve, ledger: Ledger, model: ModelServer):
    chance = random.Random(20260111)
    client = serve()
    people = [Person(client, number) for number in range(4)]
    for person in people:
        person.start()
    for _ in range(8):
        time.sleep(chance.uniform(0.2, 1.6))
        client.server.kill()
        ledger.check_file()
        client.server.start()
    time.sleep(0.5)
    for person in people:
        person.enough = True
    client.server.kill()
    for person in people:
        person.join(15)
        assert not person.is_alive()

    client = serve()
    ledger.check()
    for person in people:
        check_what_was_said(client, person, model)
        check_chat_goes_on(client, person.chat)
    ledger.check()


def check_what_was_said(client: Client, person: Person, model: ModelServer) -> None:
    assert person.refused == [], "no request was ever in another's way"
    assert person.heard
    assert [pair for pair in person.heard if pair[0] != pair[1]] == [], "what was heard is not what is stored"
    assert any(turn["status"] == "completed" for turn in person.answered.values())
    assert any((turn["error"] or {}).get("code") == "INTERRUPTED" for turn in person.answered.values())
    said = [message["content"] for message in client.messages(person.chat)]
    questions = [body["messages"][-1]["content"] for body in model.requests]
    for request, turn in person.answered.items():
        assert client.turn(request) == turn
    for request, user_message in person.accepted.items():
        assert client.turn(request)["user_message"]["id"] == user_message
    for request, query in person.asked.items():
        known = client.server.get(f"/api/chat/turns/{request}")
        answer = query.partition("40 ")[2]
        assert said.count(query) == (1 if known.ok else 0)
        assert said.count(answer) == (1 if known.ok and known.json()["status"] == "completed" else 0)
        assert questions.count(query) <= 1, "asked twice"
