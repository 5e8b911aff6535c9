"""Everything a model server can do wrong, by the API: a sentence for people, a true record, and the chat goes on."""

from __future__ import annotations

import socket
import ssl
from typing import Any, NamedTuple

import pytest

from tests.faults.client import Client, new_request
from tests.faults.ledger import Ledger
from tests.model_server import CHINESE, ModelServer
from tests.server import Server


class Fault(NamedTuple):
    query: str
    kind: str
    message: str
    partial: str = ""


FAULTS = {
    "hangs": Fault("!hang", "timeout", "did not answer in time"),
    "hangs after words": Fault("!hang-after 3", "timeout", "did not answer in time", "w1 w2 w3"),
    "trickles bytes": Fault("!trickle " + "word " * 900, "timeout", "took too long", "word word "),
    "trickles words": Fault("!words 100 4", "timeout", "took too long", "w1 w2 "),
    "resets": Fault("!reset", "connection", "reset"),
    "resets after words": Fault("!reset-after 3", "backend", "broke off", "w1 w2 w3"),
    "closes after words": Fault("!cut 3", "backend", "broke off", "w1 w2 w3"),
    "closes without a length": Fault("!close !cut 3", "backend", "broke off", "w1 w2 w3"),
    "half a stream": Fault("!half 5", "backend", "broke off", "w1 w2 w3 w4 w5"),
    "a web page": Fault("!html", "backend", "web page"),
    "empty choices": Fault("!empty-choices", "backend", "empty answer"),
    "an empty answer": Fault("!plain  ", "backend", "empty answer", " "),
    "malformed": Fault("!malformed", "backend", "not a chat completion", "w1"),
    "no HTTP": Fault('!raw "SSH-2.0-OpenSSH_9.6\\r\\n"', "backend", "did not answer in HTTP"),
    "too many": Fault("!429 7", "backend", "try again in 7 seconds"),
    "out of memory": Fault("!500 CUDA out of memory", "backend", "CUDA out of memory"),
    "unavailable": Fault("!503", "backend", "Service Unavailable"),
    "wrong key": Fault("!401 Incorrect API key provided", "backend", "Incorrect API key provided"),
    "error in the stream": Fault("!error-in-stream", "backend", "The model ran out of memory", "w1 w2"),
    "endless": Fault("!endless", "backend", "longer than", "word word "),
    "a line without end": Fault("!huge-line", "backend", "longer than"),
    "redirects": Fault("!redirect", "backend", "redirects are not followed"),
}


@pytest.fixture(scope="module")
def model():
    with ModelServer() as server:
        yield server


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def client(model: ModelServer, data_dir):
    """One server for all of them: no fault may leave anything behind that harms the next."""
    limits = {"LLM_TIMEOUT": 1, "LLM_CONNECT_TIMEOUT": 1, "LLM_TOTAL_TIMEOUT": 3, "LLM_MAX_ANSWER_MB": 1}
    with Server(data_dir, LLM_BASE_URL=model.base_url, LLM_MODEL="scripted", LLM_API_KEY="sk-wxyz", **limits) as server:
        yield Client(server)


def check_failed(client: Client, chat: str, fault: Fault, turn: dict[str, Any]) -> None:
    """The record of a failed turn, wherever it is read."""
    assert (turn["status"], turn["assistant_message"]) == ("failed", None)
    assert (turn["error"]["code"], turn["error"]["kind"]) == ("LLM_ERROR", fault.kind)
    assert fault.message.lower() in turn["error"]["message"].lower()
    assert "sk-wxyz" not in turn["error"]["message"]
    assert "Traceback" not in turn["error"]["message"]
    assert (turn["partial"] or "").startswith(fault.partial)
    assert bool(turn["partial"]) == bool(fault.partial)
    assert turn["user_message"]["metadata"]["error"] == turn["error"]
    assert client.turn(turn["turn_id"]) == turn
    assert client.messages(chat)[-1] == turn["user_message"]


def check_goes_on(client: Client, chat: str, model: ModelServer) -> None:
    """The next question works, and the failed one is neither counted nor sent along."""
    counted = client.message_count(chat)
    assert client.ask(chat, "!say fine")["assistant_message"]["content"] == "fine"
    assert client.message_count(chat) == counted + 2
    sent = [message["content"] for message in model.requests[-1]["messages"]]
    assert sent[-1] == "!say fine"
    assert not [text for text in sent[1:-1] if text.startswith("!") and text != "!say fine"]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_plain(client, model, fault):
    chat, request = client.new_chat(), new_request()
    turn = client.ask(chat, fault.query, request)
    check_failed(client, chat, fault, turn)
    asked = len(model.requests)
    assert client.ask(chat, fault.query, request) == turn
    assert len(model.requests) == asked
    check_goes_on(client, chat, model)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_streamed(client, model, fault):
    chat, request = client.new_chat(), new_request()
    heard = client.ask_streamed(chat, fault.query, request).wait()
    assert heard.response.status_code == 200
    check_failed(client, chat, fault, heard.final)
    assert heard.text == (heard.final["partial"] or "")
    assert heard.numbers == list(range(1, len(heard.deltas) + 1))
    assert client.ask_streamed(chat, fault.query, request).wait().final == heard.final
    check_goes_on(client, chat, model)


def test_a_chat_survives_them_one_after_another(client, model, data_dir):
    chat = client.new_chat()
    for fault in FAULTS.values():
        if fault.kind != "timeout":
            client.ask(chat, fault.query)
    assert client.message_count(chat) == 0
    check_goes_on(client, chat, model)
    Ledger(data_dir).check()


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("!split-utf8", CHINESE),
        ("!trickle", CHINESE),
        ("!no-done !say all of it", "all of it"),
        ("!noisy all of it", "all of it"),
        ("!linger !say all of it", "all of it"),
        ("!close !say all of it", "all of it"),
        ("!plain all of it", "all of it"),
        ("!picky !say all of it", "all of it"),
        ("!no-usage !say all of it", "all of it"),
    ],
)
def test_odd_servers_are_understood(client, query, text):
    chat = client.new_chat()
    assert client.ask(chat, query)["assistant_message"]["content"] == text
    heard = client.ask_streamed(chat, query).wait()
    assert heard.text == text == heard.final["assistant_message"]["content"] == client.messages(chat)[-1]["content"]


def test_a_server_that_was_stopped_and_comes_back(serve_with, data_dir):
    with ModelServer() as model:
        client = serve_with(model.base_url)
        chat = client.new_chat()
        assert client.ask(chat, "!say one")["status"] == "completed"
        model.stop()
        failed = client.ask(chat, "!say two")
        assert (failed["error"]["code"], failed["error"]["kind"]) == ("LLM_ERROR", "connection")
        model.start()
        assert client.ask(chat, "!say three")["assistant_message"]["content"] == "three"
        heard = client.ask_streamed(chat, "!words 100 10").wait_for_text("w3")
        model.stop()
        assert heard.wait().final["error"]["kind"] == "backend"
        model.start()
        assert client.ask(chat, "!say four")["status"] == "completed"
        assert client.message_count(chat) == 6


@pytest.fixture
def serve_with(tmp_path):
    """A server that is told to use the model server at this address."""
    started: list[Server] = []

    def start(base_url: str) -> Client:
        server = Server(tmp_path / "own", LLM_BASE_URL=base_url, LLM_MODEL="scripted", LLM_CONNECT_TIMEOUT=1)
        started.append(server)
        return Client(server.start())

    yield start
    for server in started:
        server.kill()


def check_unreachable(client: Client, kind: str, message: str) -> None:
    chat = client.new_chat()
    fault = Fault("Hello?", kind, message)
    check_failed(client, chat, fault, client.ask(chat, fault.query))
    check_failed(client, chat, fault, client.ask_streamed(chat, fault.query).wait().final)
    assert client.message_count(chat) == 0


def test_nobody_listens(serve_with):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # taken, so that nobody else listens there meanwhile
        port = taken.getsockname()[1]
        check_unreachable(
            serve_with(f"http://127.0.0.1:{port}/v1"), "connection", f"127.0.0.1:{port}: Connection refused"
        )


def test_the_name_is_unknown(serve_with):
    check_unreachable(serve_with("http://no-such-host.invalid/v1"), "connection", "no-such-host.invalid: ")


def test_nobody_takes_the_call(serve_with):
    """A server whose queue is full: connecting itself takes for ever."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for caller in waiting:
            caller.setblocking(False)
            caller.connect_ex(deaf.getsockname())
        client = serve_with(f"http://127.0.0.1:{deaf.getsockname()[1]}/v1")
        check_unreachable(client, "timeout", "did not answer in time")
        for caller in waiting:
            caller.close()


def test_it_is_not_whom_it_says(serve_with, certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with ModelServer(tls=context) as stranger:
        check_unreachable(serve_with(stranger.base_url), "connection", "certificate")
        assert stranger.requests == []
