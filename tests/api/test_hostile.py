"""Hostile input: always refused in the one shape, nothing written, and the next request finds all as it was."""

from __future__ import annotations

import json

import pytest

from tests.api.conftest import Talker
from tests.api.talk import SESSIONS, everything_in, request_id

DEEP = 100_000


@pytest.fixture(scope="module")
def paths(shared_app):
    """Every door that takes a body, for a chat with one answer; and a body that it would take."""
    client = Talker(shared_app.test_client())
    chat = client.new_chat(title="Kept", metadata={"kept": True})
    answer = client.talk(chat, "hello")[0]
    question = client.messages(chat)[0]
    return {
        "POST sessions": ("POST", SESSIONS, {"title": "x"}),
        "PATCH session": ("PATCH", f"{SESSIONS}/{chat}", {"title": "x"}),
        "POST turn": ("POST", f"{SESSIONS}/{chat}/turn", {"query": "x"}),
        "POST turn:stream": ("POST", f"{SESSIONS}/{chat}/turn:stream", {"query": "x"}),
        "POST retry": ("POST", f"{SESSIONS}/{chat}/messages/{answer['id']}/retry", {}),
        "POST retry:stream": ("POST", f"{SESSIONS}/{chat}/messages/{answer['id']}/retry:stream", {}),
        "PATCH message": ("PATCH", f"{SESSIONS}/{chat}/messages/{question['id']}", {"content": "x"}),
        "POST query": ("POST", "/api/query", {"query": "x"}),
        "POST conversation": ("POST", "/api/query/conversation", {"query": "x"}),
        "POST multimodal": ("POST", "/api/query/multimodal", {"query": "x"}),
    }


@pytest.fixture
def target(shared, paths):
    return shared, paths, everything_in(shared.app)


ENDPOINTS = [
    "POST sessions",
    "PATCH session",
    "POST turn",
    "POST turn:stream",
    "POST retry",
    "POST retry:stream",
    "PATCH message",
    "POST query",
    "POST conversation",
    "POST multimodal",
]
UNREADABLE = {
    "arrays 100,000 deep": b"[" * DEEP,
    "closed arrays 100,000 deep": b"[" * DEEP + b"]" * DEEP,
    "objects 100,000 deep": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "metadata 100,000 deep": b'{"metadata":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
    "an unknown field 100,000 deep": b'{"zzz":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "a lone high surrogate": b'{"title": "\\ud800", "query": "\\ud800", "content": "\\ud800"}',
    "a lone low surrogate": b'{"title": "a\\udc00b", "query": "a\\udc00b", "content": "a\\udc00b"}',
    "surrogates the wrong way round": b'{"zzz": "\\udc00\\ud800"}',
    "a surrogate as a key": b'{"\\ud800": 1}',
    "surrogates in UTF-8": b'{"zzz": "\xed\xa0\x80"}',
    "NaN": b'{"zzz": NaN}',
    "Infinity": b'{"zzz": Infinity}',
    "-Infinity": b'{"temperature": -Infinity}',
    "a number of 5,000 digits": b'{"zzz": ' + b"9" * 5000 + b"}",
    "invalid UTF-8": b'{"zzz": "\xff\xfe"}',
    "overlong UTF-8": b'{"zzz": "\xc0\xaf"}',
    "half a character": b'{"zzz": "\xe4\xbd"}',
    "UTF-16": '{"zzz": "x"}'.encode("utf-16"),
    "Latin-1": '{"zzz": "é"}'.encode("latin-1"),
    "a raw NUL": b'{"zzz": "a\0b"}',
    "a raw line break": b'{"zzz": "a\nb"}',
    "single quotes": b"{'zzz': 'x'}",
    "a comment": b'{"zzz": 1} // x',
    "a comma too many": b'{"zzz": 1,}',
    "an array": b'[{"query": "x"}]',
    "a form": b"query=x&request_id=y",
    "XML": b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>',
    "gzip": b"\x1f\x8b\x08\x00",
}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("body", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_bodies_that_cannot_be_read(target, endpoint, body):
    client, paths, before = target
    method, path, _ = paths[endpoint]
    response = client.http.open(path, method=method, data=body, content_type="application/json")
    survived(client, response, before)
    assert response.status_code == 400


def survived(client, response, before):
    """Refused in the one shape, nothing written, and the next request is answered."""
    assert 400 <= response.status_code < 500, response.get_data(as_text=True)[:500]
    assert response.mimetype == "application/json"
    detail = response.json["detail"]
    assert {"code", "message"} <= set(detail) <= {"code", "message", "extra"}
    assert len(response.get_data()) < 10_000, "what was sent is not sent back"
    assert everything_in(client.app) == before
    assert client.get(SESSIONS).status_code == 200


ANYTHING = [
    None,
    True,
    0,
    -1,
    1.5,
    2**63,
    -(2**63) - 1,
    10**400,
    "",
    "x",
    "a\0b",
    "x" * 300_000,
    [],
    [[]],
    {},
    {"a": []},
]
# For each endpoint its fields, each with the values out of ANYTHING that are right there.
FIELDS = {
    "POST sessions": {"title": [None, "x"], "metadata": [None, {}, {"a": []}]},
    "PATCH session": {"title": [None, "x"], "metadata": [None, {}, {"a": []}]},
    "POST turn": {
        "request_id": [],
        "query": ["x"],
        "mode": [],
        "multimodal_content": [None, {}, {"a": []}],
        "max_tokens": [None],
        "temperature": [None, 0, 1.5],
        "history_limit": [None, 0],
        "max_history_tokens": [None, 0],
    },
    "POST retry": {
        "request_id": [None],
        "mode": [],
        "max_tokens": [None],
        "temperature": [None, 0, 1.5],
        "history_limit": [None, 0],
        "max_history_tokens": [None, 0],
    },
    "PATCH message": {"content": ["x"], "variant_index": []},
    "POST query": {
        "query": ["x"],
        "mode": [],
        "top_k": [None],
        "max_tokens": [None],
        "temperature": [None, 0, 1.5],
    },
    "POST conversation": {"history": [[]]},
    "POST multimodal": {"multimodal_content": [[]]},
}


@pytest.mark.parametrize(
    ("endpoint", "field"), [(endpoint, field) for endpoint, fields in FIELDS.items() for field in fields]
)
def test_fields_of_every_wrong_type(target, endpoint, field):
    client, paths, before = target
    method, path, body = paths[endpoint]
    body = body if endpoint != "PATCH message" else {}
    for value in ANYTHING:
        if any(value == right and type(value) is type(right) for right in FIELDS[endpoint][field]):
            continue
        sent = json.dumps({"request_id": request_id(), **body, field: value}).replace("\x00", "\\u0000")
        survived(client, client.http.open(path, method=method, data=sent), before)


NUMBERS = [b"9223372036854775808", b"-9223372036854775809", b"1" + b"0" * 400, b"1e400", b"-1e400", b"1e99999"]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("place", [b'{"a": %b}', b'{"a": {"b": [1, %b]}}'])
def test_numbers_past_64_bits_are_refused_wherever_they_stand(target, number, place):
    """Nobody can promise to give them back as they came: SQLite, JavaScript and JSON itself would not."""
    client, paths, before = target
    for endpoint in ("POST sessions", "PATCH session"):
        method, path, _ = paths[endpoint]
        body = b'{"metadata": ' + place % number + b"}"
        survived(client, client.http.open(path, method=method, data=body), before)


def test_the_largest_numbers_come_back_as_they_came(shared):
    numbers = {"most": 2**63 - 1, "least": -(2**63), "float": 1.7976931348623157e308, "tiny": 5e-324}
    assert shared.post(SESSIONS, {"metadata": numbers}).json["metadata"] == numbers


@pytest.mark.parametrize("timestamp", [b"1e400", b"9223372036854775808", b"[]", b"true"])
def test_numbers_past_64_bits_in_a_history(target, timestamp):
    client, _, before = target
    entry = b'{"role": "user", "content": "x", "timestamp": %b}' % timestamp
    body = b'{"query": "x", "history": [%b]}' % entry
    survived(client, client.http.post("/api/query/conversation", data=body), before)


@pytest.mark.parametrize(
    "entry",
    [5, "x", None, [], {}, {"role": "user"}, {"content": "x"}, {"role": "robot", "content": "x"},
     {"role": 5, "content": "x"}, {"role": "user", "content": 5}, {"role": "user", "content": None},
     {"role": "user", "content": "a\0"}],
)  # fmt: skip
def test_histories_that_are_none(target, entry):
    client, _, before = target
    survived(client, client.post("/api/query/conversation", {"query": "x", "history": [entry]}), before)


@pytest.mark.parametrize(
    "item",
    [5, "x", None, [], {}, {"type": "video"}, {"type": "image"}, {"type": "image", "img_base64": ""},
     {"type": "image", "img_base64": "x"}, {"type": "image", "img_path": "/etc/passwd"},
     {"type": "table", "table_data": 5}, {"type": "equation", "latex": "\0"}, {"type": "image", "img_base64": "http://127.0.0.1/x.png"}],
)  # fmt: skip
def test_multimodal_items_that_are_none(target, item):
    client, _, before = target
    survived(client, client.post("/api/query/multimodal", {"query": "x", "multimodal_content": [item]}), before)


def test_metadata_as_deep_as_is_taken_can_be_read_again(shared):
    """There is a depth at which it is refused; up to there it must come back out of every list."""
    for depth in range(10, 400, 10):
        metadata = {}
        for _ in range(depth):
            metadata = {"a": metadata}
        response = shared.post(SESSIONS, {"metadata": metadata})
        if response.status_code != 201:
            assert response.status_code == 400
            return
        assert shared.row(response.json["id"])["metadata"] == metadata
        assert shared.patch(f"{SESSIONS}/{response.json['id']}", {"metadata": {"b": metadata}}).status_code in (
            200,
            400,
        )


def test_a_key_said_twice_counts_once(shared):
    response = shared.http.post(SESSIONS, data=b'{"title": "first", "title": "second"}')
    assert (response.status_code, response.json["title"]) == (201, "second")


@pytest.mark.parametrize("size", [1, 1000])
def test_very_many_fields(shared, size):
    body = {f"field {n}": "x" * size for n in range(10_000)}
    assert shared.post(SESSIONS, body).status_code == 201


# Addresses

QUERIES = [
    "%00",
    "%ff",
    "%ed%a0%80",
    "%c0%af",
    "%",
    "%zz",
    "a%0d%0ab",
    "'",
    '"',
    "%25",
    "\\",
    "é",
    "😀",
    "a" * 20_000,
    "%F0%9F",
]


@pytest.mark.parametrize("name", ["q", "cursor", "limit", "hard", "after", "unknown", "q[]", "", "q%00"])
def test_query_strings(target, name):
    client, _, before = target
    for value in QUERIES:
        for path in (SESSIONS, "/api/chat/search", "/api/config/current"):
            response = client.http.get(f"{path}?{name}={value}")
            assert response.status_code in (200, 400, 422), (value, response.get_data(as_text=True)[:500])
            assert response.mimetype == "application/json"
    assert everything_in(client.app) == before


@pytest.mark.parametrize(
    "query", ["?", "??", "&&&", "=", "&=&", "limit", "limit&limit", "limit=5&limit=x", "a=" * 5000]
)
def test_query_strings_without_sense(target, query):
    client, _, _ = target
    assert client.http.get(f"{SESSIONS}?{query}").status_code in (200, 422)


@pytest.mark.parametrize("path", ["/sessions", "/search"])
def test_a_nul_in_a_search_finds_nothing(shared, path):
    """SQLite would end the text there and, the rest being empty, find everything."""
    shared.new_chat(title="to be found")
    response = shared.http.get(f"/api/chat{path}?q=%00")
    assert response.status_code == 422 or response.json["sessions"] == []


@pytest.mark.parametrize(
    "name", ["%00", "%ff%fe", "%ed%a0%80", "a%0d%0aSet-Cookie:x", "..", "%2e%2e", "'--", "*", "é", "x" * 5000, "%"]
)
def test_names_in_the_path(target, name):
    client, _, before = target
    for response in (
        client.http.get(f"{SESSIONS}/{name}"),
        client.http.get(f"{SESSIONS}/{name}/messages"),
        client.http.patch(f"{SESSIONS}/{name}", json={"title": "x"}),
        client.http.delete(f"{SESSIONS}/{name}?hard=true"),
        client.http.post(f"{SESSIONS}/{name}/turn", json={"request_id": request_id(), "query": "x"}),
        client.http.get(f"/api/chat/turns/{name}"),
        client.http.get(f"/api/chat/turns/{name}/stream"),
        client.http.post(f"/api/chat/turns/{name}/stop"),
    ):
        assert response.status_code == 404
        survived(client, response, before)


# Headers

HEADERS = [
    ("Content-Type", "x" * 5000),
    ("Content-Type", "application/json; charset=\xff"),
    ("Content-Type", "multipart/form-data"),
    ("Content-Type", "multipart/form-data; boundary="),
    ("Content-Length", "x"),
    ("Content-Length", "-5"),
    ("Content-Encoding", "gzip"),
    ("Accept", "\xff\x01;q=x,,,"),
    ("Accept-Language", "*" * 5000),
    ("Authorization", "Basic \xff"),
    ("Cookie", "session=\xff; ; =; a"),
    ("Range", "bytes=x-y"),
    ("If-Modified-Since", "yesterday"),
    ("If-None-Match", '"' * 5000),
    ("X-Forwarded-For", "'; DROP TABLE"),
    ("X-Forwarded-Prefix", "//evil.example"),
    ("X-Forwarded-Prefix", "/a b\xff"),
    ("X-Forwarded-Host", "evil.example"),
    ("X-HTTP-Method-Override", "DELETE"),
    ("Last-Event-ID", "9" * 5000),
    ("User-Agent", "\xff" * 5000),
    ("Transfer-Encoding", "chunked"),
]


@pytest.mark.parametrize(("name", "value"), HEADERS)
def test_headers(target, name, value):
    client, _, before = target
    for path in (SESSIONS, "/", "/docs", "/static/css/app.css", "/api/chat/turns/x/stream"):
        response = client.http.get(path, headers={name: value})
        assert response.status_code < 500
        assert "evil.example" not in response.get_data(as_text=True)
        response.close()
    response = client.http.patch(f"{SESSIONS}/nowhere", data=b'{"title": "x"}', headers={name: value})
    survived(client, response, before)


@pytest.mark.parametrize(
    "origin", ["http://[::1", "http://]", "null", "", "://", "http://\xff", "x" * 5000, "http://localhost@evil.example"]
)
def test_origins_without_sense_are_foreign(target, origin):
    client, _, before = target
    response = client.http.post(SESSIONS, json={}, headers={"Origin": origin})
    survived(client, response, before)
    assert response.status_code == 403


@pytest.mark.parametrize(
    "host",
    ["[::1", "]", "a b", "\xff", "x" * 5000, "localhost:port", "localhost@evil.example", "evil.example#localhost"],
)
def test_hosts_without_sense_are_foreign(target, host):
    client, _, before = target
    response = client.http.get(SESSIONS, headers={"Host": host})
    survived(client, response, before)
    assert response.status_code == 421
