"""The OpenAI provider against a scripted server, over real sockets."""

from __future__ import annotations

import gzip
import json
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field

import pytest
import requests

from adapters import http
from adapters.errors import Aborted, AdapterError
from adapters.providers import openai, openai_stream, providers
from adapters.providers.openai import OpenAI
from adapters.values import Cancel, Delta, Options, Usage
from tests.model_server import CHINESE, ModelServer, numbered

KEY = "sk-do-not-show-me"
NEW_YEAR = "Fri, 31 Dec 2027 23:59:59 GMT"


def provider_for(server, **options):
    """Patient by default: a machine under load must not look like a server that hangs."""
    return OpenAI(server.base_url, KEY, "some-model", **{"connect_timeout": 5.0, "read_timeout": 20.0} | options)


@pytest.fixture
def provider(server):
    return provider_for(server)


def ask(provider, question, cancel=None, **options):
    messages = [{"role": "user", "content": question}]
    return provider.stream(messages, Options(cancel=cancel or Cancel(), **options))


def text(deltas):
    return "".join(delta.text for delta in deltas)


def usage(deltas):
    return [delta.usage for delta in deltas if delta.usage]


def raw(body, head="HTTP/1.1 200 OK\r\nContent-Type: text/event-stream"):
    """A question that makes the server send exactly this, and close."""
    return "!raw " + json.dumps(f"{head}\r\n\r\n{body}")


def events(*choices, end="data: [DONE]\n\n"):
    return "".join(f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in choices) + end


def said(content, **more):
    return {"delta": {"content": content}, **more}


@dataclass
class Outcome:
    """What a call in another thread came to."""

    deltas: list[Delta] = field(default_factory=list)
    error: BaseException | None = None
    ended: float = 0.0
    thread: threading.Thread | None = None

    def join(self):
        self.thread.join(15)
        assert not self.thread.is_alive(), "the call did not end"
        return self


def in_thread(provider, question, cancel=None):
    outcome = Outcome()

    def run():
        try:
            for delta in ask(provider, question, cancel):
                outcome.deltas.append(delta)
        except BaseException as error:
            outcome.error = error
        outcome.ended = time.monotonic()

    outcome.thread = threading.Thread(target=run, daemon=True)
    outcome.thread.start()
    return outcome


def fault(provider, question):
    with pytest.raises(AdapterError) as raised:
        list(ask(provider, question))
    assert KEY not in str(raised.value)
    return raised.value


# What is asked


def test_is_registered():
    assert providers["openai"] is OpenAI
    assert OpenAI.name == "openai"


def test_sends_the_question_as_the_api_wants_it(server, provider):
    list(ask(provider, "hello", temperature=0.5, max_tokens=7))
    assert server.requests == [
        {
            "model": "some-model",
            "messages": [{"role": "user", "content": "hello"}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.5,
            "max_tokens": 7,
        }
    ]
    headers = server.log[0]["headers"]
    assert headers["authorization"] == f"Bearer {KEY}"
    assert headers["accept-encoding"] == "identity"
    assert server.log[0]["path"] == "/v1/chat/completions"


def test_leaves_out_what_nobody_chose(server, provider):
    list(ask(provider, "hello"))
    assert not {"temperature", "max_tokens"} & server.requests[0].keys()


def test_without_a_key_none_is_sent(server):
    list(ask(OpenAI(server.base_url + "/", "", "m"), "hello"))
    assert "authorization" not in server.log[0]["headers"]


def test_neither_netrc_nor_proxies_of_the_environment_count(server, tmp_path, monkeypatch):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert text(ask(provider_for(server), "!say ok")) == "ok"
    assert server.log[0]["headers"]["authorization"] == f"Bearer {KEY}"


def test_cookies_are_not_kept(server, provider):
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nSet-Cookie: track=me; Path=/"
    assert text(ask(provider, raw(events(said("hi")), head))) == "hi"
    list(ask(provider, "again"))
    assert "cookie" not in server.log[1]["headers"]


def test_a_server_that_knows_no_stream_options_is_asked_without_from_then_on(server, provider):
    deltas = list(ask(provider, "!picky !say fine"))
    assert (text(deltas), usage(deltas)) == ("fine", [])
    assert text(ask(provider, "!picky !say fine")) == "fine"
    assert ["stream_options" in body for body in server.requests] == [True, False, False]


def test_another_400_is_not_asked_twice(server, provider):
    assert fault(provider, "!400 too long").message == "too long"
    assert len(server.requests) == 1


# What is understood


def test_words_come_one_by_one_with_model_and_usage(provider):
    deltas = list(ask(provider, "!words 5 100"))
    assert [delta.text for delta in deltas] == [*numbered(5), ""]
    assert [delta.model for delta in deltas] == ["scripted", None, None, None, None, None]
    assert usage(deltas) == [Usage(3, 5)]


def test_the_first_word_does_not_wait_for_the_last(provider):
    started = time.monotonic()
    stream = ask(provider, "!slow 1 one two three four five six seven eight")
    assert next(stream).text == "one "
    assert time.monotonic() - started < 4.0
    stream.close()


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("hello  big\nworld", "You said: hello  big\nworld"),
        ("!say 你好 😀 café\n\n", "你好 😀 café\n\n"),
        ("!split-utf8", CHINESE),
        ("!trickle", CHINESE),
        ("!trickle a few plain words", "a few plain words"),
        ("!noisy one two", "one two"),
        ("!plain one\ntwo", "one\ntwo"),
        ("!close !words 9", " ".join(f"w{n}" for n in range(1, 10))),
        ("!no-done !say kept", "kept"),
        ("!no-usage !say kept", "kept"),
        ("!sleep-headers 0.2 !say late", "late"),
    ],
)
def test_understands(provider, question, answer):
    assert text(ask(provider, question)) == answer


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (events(said("a"), said("b"), end="data: [DONE]"), "ab"),
        (events(said("a", finish_reason="length"), end=""), "a"),
        (events(said("\ud83d"), said("\ude00")), "😀"),
        (events(said("a\ud83d"), said("b")), "a\ufffdb"),
        (events(said("a"), {"delta": {"reasoning_content": "hm"}}, {"delta": None}, {}), "a"),
        (events(said("a")) + events(said("not this")), "a"),
        ("data: " + json.dumps({"choices": [said("\udcff")]}, ensure_ascii=False) + "\n\ndata: [DONE]\n", "\ufffd"),
        (json.dumps({"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}) + "\n", "a"),
    ],
    ids=[
        "no last newline",
        "no done",
        "half emoji",
        "lone half",
        "other deltas",
        "after done",
        "bad bytes",
        "bare json",
    ],
)
def test_understands_bodies(provider, body, answer):
    assert text(ask(provider, raw(body))) == answer


@pytest.mark.parametrize("told", [{"prompt_tokens": "3"}, 5, [], (-1, 1), (1, 2**70)])
def test_a_usage_that_makes_no_sense_is_left_out(provider, told):
    if isinstance(told, tuple):
        told = {"prompt_tokens": told[0], "completion_tokens": told[1]}
    body = f"data: {json.dumps({'choices': [said('a')], 'usage': told})}\n\ndata: [DONE]\n\n"
    deltas = list(ask(provider, raw(body)))
    assert (text(deltas), usage(deltas)) == ("a", [])


def test_words_that_arrive_together_travel_together(provider):
    body = events(*[said(word) for word in numbered(50)])
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {len(body)}"
    assert [delta.text for delta in ask(provider, raw(body, head))] == ["".join(numbered(50))]


def test_a_body_that_is_compressed_all_the_same_is_read(provider):
    packed = gzip.compress(events(said("small")).encode()).decode("utf-8", "surrogateescape")
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip"
    assert text(ask(provider, raw(packed, head))) == "small"


def test_a_finish_reason_with_every_word_is_not_the_end(provider, monkeypatch):
    monkeypatch.setattr(openai, "AFTER_FINISH", 0.05)
    assert text(ask(provider, "!finish-with-every-word one two three")) == "one two three"


def test_a_whole_object_over_several_lines(provider):
    whole = {"choices": [{"message": {"role": "assistant", "content": "one\ntwo"}}], "usage": None}
    head = "HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8"
    assert text(ask(provider, raw(json.dumps(whole, indent=2), head))) == "one\ntwo"


def test_a_long_line_in_small_pieces_costs_no_more_than_its_length():
    answer, started = openai_stream.Answer(), time.process_time()
    for _ in range(200_000):
        assert answer.feed(b"some twenty bytes...") is None
    assert time.process_time() - started < 2.0


def test_lists_models(provider):
    assert provider.models() == ["scripted", "scripted-small"]


def test_many_at_once_do_not_mix(server):
    provider = provider_for(server)
    calls = [in_thread(provider, f"!slow 100 {' '.join(f'{n}-{m}' for m in range(20))}") for n in range(60)]
    for n, call in enumerate(calls):
        assert call.join().error is None
        assert text(call.deltas) == " ".join(f"{n}-{m}" for m in range(20))


# What breaks


@pytest.mark.parametrize(
    ("question", "kind", "words", "before"),
    [
        ("!reset", "connection", "reset", ""),
        ("!reset-after 3", "backend", "broke off in the middle", "w1 w2 w3"),
        ("!half 3", "backend", "broke off in the middle", "w1 w2 w3"),
        ("!cut 3", "backend", "broke off in the middle", "w1 w2 w3"),
        ("!close !cut 3", "backend", "broke off in the middle", "w1 w2 w3"),
        ("!html", "backend", "web page", ""),
        ("!empty-choices", "backend", "empty answer", ""),
        ("!malformed", "backend", "not a chat completion", "w1"),
        ("!error-in-stream out of memory", "backend", "out of memory", "w1 w2"),
        ("!redirect", "backend", "redirects are not followed", ""),
        ("!429 7", "backend", "Try again in 7 seconds: Rate limit reached", ""),
        ("!500 it is broken", "backend", "it is broken", ""),
    ],
)
def test_faults(provider, question, kind, words, before):
    call = in_thread(provider, question).join()
    assert isinstance(call.error, AdapterError)
    assert (call.error.kind, call.error.permanent) == (kind, False)
    assert words in call.error.message
    assert text(call.deltas) == before


@pytest.mark.parametrize(("question", "before"), [("!hang", ""), ("!hang-after 3", "w1 w2 w3")])
def test_a_server_that_hangs(server, question, before):
    call = in_thread(provider_for(server, read_timeout=0.5), question).join()
    assert isinstance(call.error, AdapterError)
    assert (call.error.kind, call.error.message) == ("timeout", "The model server did not answer in time.")
    assert text(call.deltas) == before
    assert server.wait_until_closed()


@pytest.mark.parametrize(("status", "words"), [(500, "half a sen"), (302, "redirects are not followed")])
def test_a_refusal_whose_words_do_not_come_is_not_waited_for(provider, monkeypatch, status, words):
    monkeypatch.setattr(http, "AFTER_REFUSAL", 0.2)
    started = time.monotonic()
    assert words in fault(provider, f"!hang-body {status}").message
    assert time.monotonic() - started < 5.0


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (events(said(5)), "not text"),
        (events(said(["parts"])), "not text"),
        ("<html>no</html>", "not a chat completion"),
        ("", "not a chat completion"),
        ("data: 5\n\n", "not a chat completion"),
        ('data: {"choices": 7}\n\n', "not a chat completion"),
        ('data: {"choices": [null]}\n\n', "not a chat completion"),
        ("data: " + "[" * 100_000 + "\n\n", "not a chat completion"),
        ('data: {"usage": ' + "9" * 5000 + "}\n\n", "not a chat completion"),
        ('data: {"error": "plain words"}\n\n', "plain words"),
        ('data: {"error": {"code": 1}}\n\n', "reported an error"),
        ('{"error": {"message": "bare words"}}\n', "bare words"),
        (events({"delta": {}, "finish_reason": "stop"}), "empty answer"),
    ],
)
def test_bodies_that_are_no_answer(provider, body, words):
    error = fault(provider, raw(body))
    assert error.kind == "backend"
    assert words in error.message


def test_words_before_an_error_in_the_same_packet_are_kept(provider):
    stream = ask(provider, raw(events(said("kept"), end='data: {"error": "then this"}\n\n')))
    assert next(stream).text == "kept"
    with pytest.raises(AdapterError, match="then this"):
        next(stream)


@pytest.mark.parametrize("question", ["!endless", "!huge-line"])
def test_an_answer_without_end_is_cut_off(server, question):
    error = fault(provider_for(server, max_response_bytes=300_000), question)
    assert error.kind == "backend"
    assert "longer than 300000 bytes" in error.message
    assert server.wait_until_closed()


@pytest.mark.parametrize(
    ("head", "body", "message"),
    [
        ("502 x", "<html><h1>Bad gateway</h1></html>", "HTTP 502 Bad Gateway"),
        ("503 x", "", "HTTP 503 Service Unavailable"),
        ("599 x", "", "HTTP 599"),
        ("500 x", '{"error": {"message": "one"}}', "one"),
        ("500 x", '{"error": "two"}', "two"),
        ("500 x", '{"detail": "three"}', "three"),
        ("500 x", '{"message": "four"}', "four"),
        ("422 x", '{"detail": [{"loc": ["a"], "msg": "five"}]}', "five"),
        ("500 x", "six\n  plain\x00 words", "six plain words"),
        ("500 x", "[" * 60_000, "[" * 500),
        ("500 x", "{}", "HTTP 500 Internal Server Error"),
        ("500 x", "x" * 900, "x" * 500),
        ("429 x\r\nRetry-After: " + NEW_YEAR, "slow down", f"Try again after {NEW_YEAR}: slow down"),
        ("500 x\r\nContent-Length: 99", "cut short", "cut short"),
    ],
)
def test_the_servers_own_words(provider, head, body, message):
    error = fault(provider, raw(body, f"HTTP/1.1 {head}"))
    assert error.kind == "backend"
    assert error.message == message


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_some_refusals_are_final_and_the_key_is_not_repeated(provider, status):
    error = fault(provider, f"!{status}")
    assert error.permanent
    assert "your key: [key]" in error.message


def test_the_key_is_not_repeated_from_inside_a_stream(provider):
    assert fault(provider, f"!error-in-stream bad key {KEY}").message == "bad key [key]"


def test_not_even_half_of_the_key_is_repeated_where_a_long_message_is_cut(provider):
    message = fault(provider, f"!500 {'x' * 490} {KEY}").message
    assert len(message) <= 500
    assert KEY[:4] not in message


def test_the_key_is_in_no_printed_traceback(provider):
    error = fault(provider, "!401")
    assert KEY not in "".join(traceback.format_exception(error))


@pytest.mark.parametrize("key", ["two\r\nX-Injected: lines", "schlüssel", "nul\x00", "密钥"])
def test_a_key_that_no_header_can_carry(server, key):
    provider = OpenAI(server.base_url, key, "m")
    for call in (lambda: list(ask(provider, "hi")), provider.models):
        with pytest.raises(AdapterError) as raised:
            call()
        assert raised.value.permanent
        assert key not in raised.value.message
    assert server.log == []


def test_a_newline_at_the_end_of_a_key_is_no_part_of_it(server):
    list(ask(OpenAI(server.base_url, f"{KEY}\n", "m"), "hi"))
    assert server.log[0]["headers"]["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    ("base_url", "words"),
    [
        ("http://127.0.0.1:1/v1", "127.0.0.1:1: Connection refused"),
        ("http://name:pass@127.0.0.1:1/v1", "127.0.0.1:1: Connection refused"),
        ("http://nowhere.invalid/v1", "nowhere.invalid: "),
        ("nonsense", "nonsense: this address cannot be used"),
        ("ftp://127.0.0.1/v1", "127.0.0.1: this address cannot be used"),
        ("http://[half/v1", "this address cannot be used"),
        (f"http://{'a' * 80}.example/v1", "this address cannot be used"),
        ("http://127.0.0.1:99999/v1", "this address cannot be used"),
    ],
)
def test_servers_that_cannot_be_reached(base_url, words):
    provider = OpenAI(base_url, KEY, "m", connect_timeout=2.0)
    for call in (lambda: list(ask(provider, "hi")), provider.models):
        with pytest.raises(AdapterError) as raised:
            call()
        assert raised.value.kind == "connection"
        assert words in raised.value.message
        assert "pass@" not in raised.value.message


def test_a_server_that_takes_no_connection_times_out():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        # The queue of those that wait to be accepted is full: the next one gets no answer at all.
        with socket.create_connection(listener.getsockname()), socket.socket() as second:
            second.setblocking(False)
            second.connect_ex(listener.getsockname())
            address = "http://{}:{}/v1".format(*listener.getsockname())
            error = fault(OpenAI(address, KEY, "m", connect_timeout=0.3, read_timeout=0.3), "hi")
    assert error.kind == "timeout"


@pytest.mark.parametrize(
    "words", ["SSH-2.0-OpenSSH_9.2\r\n", "HTTP/1.1 abc\r\n\r\n", "HTTP/1.1 200 OK\r\n" + "A: b\r\n" * 200]
)
def test_a_server_that_speaks_something_else(provider, words):
    error = fault(provider, "!raw " + json.dumps(words))
    assert (error.kind, error.message) == ("backend", "The model server did not answer in HTTP.")


@pytest.mark.parametrize("body", ["nonsense", "{}", '{"data": 5}', '{"data": [5]}', "[" * 100_000])
def test_lists_of_models_that_are_none(monkeypatch, server, body):
    monkeypatch.setattr("tests.model_server.Exchange.json", lambda exchange, *_: exchange.respond(200, body.encode()))
    with pytest.raises(AdapterError, match="not a list of models") as raised:
        provider_for(server).models()
    assert raised.value.kind == "backend"


def test_models_of_a_server_that_refuses(server):
    provider = OpenAI(f"{server.base_url}/wrong", KEY, "m")
    with pytest.raises(AdapterError, match="There is no GET /v1/wrong/models here") as raised:
        provider.models()
    assert raised.value.permanent


def test_redirects_lead_nowhere(server, provider):
    with ModelServer() as elsewhere:
        fault(provider, f"!redirect {elsewhere.base_url}/chat/completions")
        assert elsewhere.log == []
    assert len(server.log) == 1


def test_an_outer_error_that_is_being_handled_is_not_blamed():
    try:
        raise TimeoutError("of somebody else")
    except TimeoutError:
        assert fault(OpenAI("http://127.0.0.1:1/v1", KEY, "m"), "hi").kind == "connection"


# Connections


def test_a_connection_is_used_again(server, provider):
    for _ in range(3):
        assert text(ask(provider, "!words 5")) == "w1 w2 w3 w4 w5"
    provider.models()
    assert server.connections_seen == 1


def test_a_server_that_does_not_end_after_done_costs_no_wait(server):
    started = time.monotonic()
    assert text(ask(provider_for(server), "!linger !say all")) == "all"
    assert time.monotonic() - started < 4.0
    assert server.wait_until_closed()


def test_a_connection_that_rested_long_is_not_used_again(server, provider, monkeypatch):
    list(ask(provider, "one"))
    monkeypatch.setattr(http, "REUSE_WITHIN", 0.0)
    list(ask(provider, "two"))
    assert server.connections_seen == 2


@pytest.mark.parametrize("unseen_by_the_pool", [False, True])
def test_a_connection_that_the_server_closed_meanwhile_is_no_error(server, provider, monkeypatch, unseen_by_the_pool):
    list(ask(provider, "one"))
    server.drop_idle()
    assert server.wait_until_closed()
    if unseen_by_the_pool:
        monkeypatch.setattr("urllib3.connectionpool.is_connection_dropped", lambda _: False)
    assert text(ask(provider, "!say two")) == "two"


def test_a_server_that_was_stopped_and_is_back(server, provider):
    list(ask(provider, "one"))
    server.stop()
    assert fault(provider, "two").kind == "connection"
    server.start()
    assert text(ask(provider, "!say three")) == "three"


def test_nothing_is_asked_twice(server, provider):
    list(ask(provider, "one"))
    assert fault(provider, "!reset").kind == "connection"
    assert (server.connections_seen, len(server.requests)) == (1, 2)


def test_a_stream_that_nobody_reads_on_is_closed(server, provider):
    stream = ask(provider, "!words 1000 50")
    assert next(stream).text == "w1 "
    stream.close()
    assert server.wait_until_closed()
    assert server.log[0]["closed_early"]
    assert text(ask(provider, "!say clean")) == "clean"


# Stopping


@pytest.mark.parametrize(
    ("question", "words"),
    [("!hang", 0), ("!hang-after 3", 3), ("!close !hang-after 3", 3), ("!words 500 50", 3)],
)
def test_abort_ends_the_call_and_the_connection_at_once(server, question, words):
    cancel = Cancel()
    call = in_thread(provider_for(server), question, cancel)
    assert server.wait_for(lambda: server.log and len("".join(d.text for d in call.deltas).split()) >= words)
    aborted = time.monotonic()
    cancel.abort()
    assert isinstance(call.join().error, Aborted)
    assert call.ended - aborted < 4.0
    assert server.wait_until_closed()
    assert server.log[0]["closed_early"]


def test_abort_closes_the_connection_while_nobody_reads(server, provider):
    cancel = Cancel()
    stream = ask(provider, "!words 1000 50", cancel)
    next(stream)
    cancel.abort()
    assert server.wait_until_closed()
    with pytest.raises(Aborted):
        next(stream)


def test_after_an_abort_not_even_what_has_already_arrived_is_given(provider):
    cancel = Cancel()
    stream = ask(provider, "!words 300", cancel)
    next(stream)
    cancel.abort()
    with pytest.raises(Aborted):
        next(stream)


def test_abort_while_the_question_is_being_sent():
    cancel = Cancel()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        provider = OpenAI("http://{}:{}/v1".format(*listener.getsockname()), KEY, "m")
        call = in_thread(provider, "long " * 5_000_000, cancel)
        accepted, _ = listener.accept()
        with accepted:
            time.sleep(0.2)
            cancel.abort()
            assert isinstance(call.join().error, Aborted)


def test_abort_before_the_call_asks_nothing(server, provider):
    cancel = Cancel()
    cancel.abort()
    with pytest.raises(Aborted):
        list(ask(provider, "hi", cancel))
    # The server has seen every earlier connection by the time it answers a later one.
    list(ask(OpenAI(server.base_url, KEY, "m"), "hi"))
    assert (server.connections_seen, len(server.log)) == (1, 1)


class Remembering(Cancel):
    """Keeps what would have ended the call, as a thread does that aborts at the very moment the call is over."""

    def ends_by(self, end):
        self.last = end or self.last
        super().ends_by(end)


def test_an_abort_that_comes_too_late_does_not_hit_the_next_call(server):
    provider, late = provider_for(server), Remembering()
    list(ask(provider, "one", late))
    call = in_thread(provider, "!words 20 50")
    assert server.wait_for(lambda: call.deltas)
    late.last()
    late.abort()
    assert call.join().error is None
    assert text(call.deltas) == "".join(numbered(20))
    assert server.connections_seen == 1


def test_an_abort_after_the_end_leaves_the_connection_alone(server, provider):
    cancel = Cancel()
    list(ask(provider, "one", cancel))
    cancel.abort()
    assert text(ask(provider, "!say two")) == "two"
    assert server.connections_seen == 1


def test_an_answer_whose_connection_is_in_use_again_leaves_that_alone(server):
    provider = provider_for(server)
    first = ask(provider, "!plain one")
    assert next(first).text == "one"
    second = in_thread(provider, "!slow 4 two three four")
    assert server.wait_for(lambda: second.deltas)
    list(first)
    assert second.join().error is None
    assert (text(second.deltas), server.connections_seen) == ("two three four", 1)


def test_a_pooled_connection_that_was_cut_is_not_used(server, provider, monkeypatch):
    late = Remembering()
    # As if the abort fell between the last byte and the end of the call, after the pool's own look at the connection.
    monkeypatch.setattr(http.Call, "end", lambda _: None)
    list(ask(provider, "one", late))
    monkeypatch.setattr("urllib3.connectionpool.is_connection_dropped", lambda _: False)
    late.last()
    assert text(ask(provider, "!say two")) == "two"
    assert server.connections_seen == 2


# TLS


def test_a_certificate_that_nobody_vouches_for(tls_server):
    error = fault(provider_for(tls_server), "hi")
    assert error.kind == "connection"
    assert re.search(r"^127\.0\.0\.1:\d+: self.signed certificate$", error.message)
    assert tls_server.log == []


@pytest.fixture
def trusting(certificate, monkeypatch):
    context = ssl.create_default_context(cafile=certificate)
    monkeypatch.setattr(http, "trusted", lambda: context)


@pytest.mark.usefixtures("trusting")
def test_streams_over_tls_and_uses_the_connection_again(tls_server):
    provider = provider_for(tls_server)
    assert text(ask(provider, "!words 30")) == "".join(numbered(30))
    assert text(ask(provider, "!split-utf8")) == CHINESE
    assert tls_server.connections_seen == 1


@pytest.mark.usefixtures("trusting")
@pytest.mark.parametrize("question", ["!hang", "!hang-after 2", "!close !hang-after 2", "!words 500 100"])
def test_abort_over_tls(tls_server, question):
    cancel = Cancel()
    call = in_thread(provider_for(tls_server), question, cancel)
    assert tls_server.wait_for(lambda: tls_server.log and (call.deltas or question == "!hang"))
    aborted = time.monotonic()
    cancel.abort()
    assert isinstance(call.join().error, Aborted)
    assert call.ended - aborted < 4.0
    assert tls_server.wait_until_closed()


@pytest.mark.usefixtures("trusting")
def test_faults_over_tls(tls_server):
    assert fault(provider_for(tls_server), "!reset").kind == "connection"
    assert fault(provider_for(tls_server), "!reset-after 2").kind == "backend"
    assert fault(provider_for(tls_server, read_timeout=0.5), "!hang-after 2").kind == "timeout"


# The scripted server itself, where other tests and the bench lean on it


def test_the_scripted_server_runs_alone_and_tells_what_it_received():
    command = [sys.executable, "tests/model_server.py", "--port", "0", "--words", "4", "--words-per-second", "100"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            base_url = process.stdout.readline().removeprefix("listening on ").strip()
            assert text(ask(OpenAI(base_url, KEY, "m"), "anything")) == "w1 w2 w3 w4"
            log = requests.get(base_url.removesuffix("/v1") + "/log", timeout=2).json()
            assert log["requests"][0]["body"]["messages"][0]["content"] == "anything"
            assert log["requests"][0]["headers"]["authorization"] == f"Bearer {KEY}"
        finally:
            process.terminate()


def test_the_scripted_server_keeps_its_pace_and_stamps(provider):
    received = [(delta.text, time.time()) for delta in ask(provider, "!stamped 10 50")]
    stamps = [float(stamp) for words, _ in received for stamp in words.split(";") if stamp]
    assert len(stamps) == 10
    assert 0.15 < stamps[-1] - stamps[0] < 3.0
    assert all(0 <= now - float(words.split(";")[0]) < 3.0 for words, now in received if words)


def test_the_scripted_server_embeds(server):
    def embed(*texts):
        answer = requests.post(f"{server.base_url}/embeddings", json={"input": list(texts), "model": "m"}, timeout=2)
        return [item["embedding"] for item in answer.json()["data"]]

    cats, again, ships = embed("cats and dogs", "cats and dogs", "a ship at sea")
    assert cats == again
    assert cats != ships


def test_the_scripted_server_answers_whole(server):
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "!say one two"}]}]}
    answer = requests.post(f"{server.base_url}/chat/completions", json=body, timeout=2).json()
    assert answer["choices"][0]["message"]["content"] == "one two"
