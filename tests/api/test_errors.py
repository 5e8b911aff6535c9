"""Errors: every row of the table in the contract, each in the one shape; and what is not in it, in the same."""

from __future__ import annotations

import io
import json
import socket
from contextlib import closing

import pytest

from models.base import sqlite_module
from models.chat import Chat
from tests.api.conftest import IMAGES, Talker, encoded
from tests.api.talk import SESSIONS, everything_in, refused, refused_fields, request_id


@pytest.fixture
def chat(shared):
    return shared.new_chat()


def turn(client, chat, **body):
    return client.post(f"{SESSIONS}/{chat}/turn", {"request_id": request_id(), "query": "x", **body})


# 400

NOT_OBJECTS = [
    b"",
    b" \n",
    b"x",
    b"{",
    b"{]",
    b"null",
    b"5",
    b'"text"',
    b"[]",
    b"[{}]",
    b"true",
    b"{} {}",
    b"\xef\xbb\xbf{}",
]


@pytest.mark.parametrize("body", NOT_OBJECTS)
@pytest.mark.parametrize("kind", ["application/json", "text/plain", "application/x-www-form-urlencoded", ""])
def test_bodies_that_are_no_json_object(shared, chat, body, kind):
    before = everything_in(shared.app)
    for path in (f"{SESSIONS}/{chat}/turn", f"{SESSIONS}/{chat}/turn:stream", "/api/query"):
        refused(shared.http.post(path, data=body, content_type=kind), 400, "BAD_REQUEST")
    assert everything_in(shared.app) == before


@pytest.mark.parametrize("body", NOT_OBJECTS[2:])
def test_bodies_that_are_no_json_object_where_nothing_is_required(shared, chat, body):
    before = everything_in(shared.app)
    refused(shared.http.post(SESSIONS, data=body), 400, "BAD_REQUEST")
    refused(shared.http.patch(f"{SESSIONS}/{chat}", data=body), 400, "BAD_REQUEST")
    refused(shared.http.post(f"{SESSIONS}/{chat}/messages/x/retry", data=body), 400, "BAD_REQUEST")
    assert everything_in(shared.app) == before


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "text/plain", "application/octet-stream", ""])
def test_json_is_read_whatever_it_is_called(shared, kind):
    assert shared.http.post(SESSIONS, data=b'{"title": "x"}', content_type=kind).status_code == 201


ASKING = ["turn", "turn:stream", "/api/query", "/api/query/conversation", "/api/query/multimodal"]


def asking(chat, where):
    return where if where.startswith("/") else f"{SESSIONS}/{chat}/{where}"


@pytest.mark.parametrize("where", ASKING)
@pytest.mark.parametrize("query", [None, "", " ", "\n\t\u3000\u2003", ...])
def test_empty_query(shared, chat, where, query):
    body = {"request_id": request_id(), "mode": "naive"} | ({} if query is ... else {"query": query})
    refused(shared.post(asking(chat, where), body), 400, "EMPTY_QUERY")
    assert shared.messages(chat) == []


@pytest.mark.parametrize("where", ASKING)
@pytest.mark.parametrize("mode", ["", "Hybrid", "psychic", "naive ", "混合"])
def test_invalid_mode(shared, chat, where, mode):
    refused(
        shared.post(asking(chat, where), {"request_id": request_id(), "query": "x", "mode": mode}), 400, "INVALID_MODE"
    )
    assert shared.messages(chat) == []


@pytest.mark.parametrize("where", ["turn", "turn:stream"])
@pytest.mark.parametrize("body", [{}, {"request_id": None}, {"request_id": ""}])
def test_missing_request_id(shared, chat, where, body):
    refused(shared.post(asking(chat, where), {"query": "x", **body}), 400, "MISSING_REQUEST_ID")
    assert shared.messages(chat) == []


def test_invalid_cursor(shared):
    refused(shared.get(SESSIONS, cursor="nonsense"), 400, "INVALID_CURSOR")


@pytest.mark.parametrize(
    "image",
    [
        {"img_base64": "%%%"},
        {"img_base64": encoded(b"hello")},
        {"img_base64": encoded(IMAGES["image/png"]), "img_mime_type": "image/gif"},
        {"img_base64": encoded(IMAGES["image/png"] + b"\0" * 10_000_000)},
    ],
    ids=["bad Base64", "not an image", "wrong type", "too large"],
)
def test_multimodal_invalid(shared, chat, image):
    refused(turn(shared, chat, multimodal_content=image), 400, "MULTIMODAL_INVALID")
    assert shared.messages(chat) == []


# 404, 409


def test_session_not_found(shared):
    refused(turn(shared, request_id()), 404, "SESSION_NOT_FOUND")


def test_message_not_found(shared, chat):
    refused(shared.patch(f"{SESSIONS}/{chat}/messages/{request_id()}", {"content": "x"}), 404, "MESSAGE_NOT_FOUND")


def test_idempotency_conflict(shared, chat):
    first = turn(shared, chat).json["turn_id"]
    extra = refused(turn(shared, chat, request_id=first, query="y"), 409, "IDEMPOTENCY_CONFLICT")
    assert set(extra) == {"existing_status", "expected_hash", "received_hash"}


def test_turn_in_progress(talker):
    chat = talker.new_chat()
    running = talker.stream(chat, "!hang-after 1").next("start").data["turn_id"]
    assert refused(turn(talker, chat), 409, "TURN_IN_PROGRESS") == {"turn_id": running}


def test_not_latest_message(shared, chat):
    shared.talk(chat, "one", "two")
    first = shared.messages(chat)[1]["id"]
    refused(shared.retry(chat, first), 409, "NOT_LATEST_MESSAGE")


# 413


@pytest.fixture
def small(make_app):
    return Talker(make_app(max_body_mb=1).test_client())


def test_payload_too_large(small):
    body = json.dumps({"title": "x", "metadata": {"a": "y" * 1_000_000}}).encode()
    refused(small.http.post(SESSIONS, data=body), 413, "PAYLOAD_TOO_LARGE")
    assert everything_in(small.app) == [[], [], []]
    assert small.post(SESSIONS, {"metadata": {"a": "y" * 900_000}}).status_code == 201


def test_payload_too_large_that_does_not_say_so(small):
    response = small.http.post(
        SESSIONS, input_stream=io.BytesIO(b" " * 3_000_000), environ_overrides={"wsgi.input_terminated": True}
    )
    refused(response, 413, "PAYLOAD_TOO_LARGE")


def test_the_largest_body_by_default_holds_an_image(shared, chat):
    image = encoded(IMAGES["image/png"] + b"\0" * 9_000_000)
    assert turn(shared, chat, multimodal_content={"img_base64": image}).status_code == 200
    refused(turn(shared, chat, query="x" * 20_000_000), 413, "PAYLOAD_TOO_LARGE")


# 422, 429


def test_validation_error_lists_every_field_with_its_reason(shared, chat):
    response = turn(shared, chat, max_tokens="x", temperature=9, history_limit=-1)
    assert sorted(refused_fields(response)) == ["history_limit", "max_tokens", "temperature"]


def test_validation_error_does_not_repeat_what_was_sent(shared, chat):
    assert "hunter2" not in turn(shared, chat, max_tokens="hunter2").get_data(as_text=True)


@pytest.mark.parametrize("where", ["turn", "turn:stream", "/api/query"])
def test_rate_limited(make_app, where):
    client = Talker(make_app(rate_limit_per_minute=2).test_client())
    chat = client.new_chat()

    def ask():
        return client.post(asking(chat, where), {"request_id": request_id(), "query": "x"})

    for _ in range(2):
        assert ask().get_data() is not None
    response = ask()
    refused(response, 429, "RATE_LIMITED")
    assert 1 <= int(response.headers["Retry-After"]) <= 60
    assert client.get(SESSIONS).status_code == 200


def test_too_many_answers_at_once_are_limited_too(make_app, model_server):
    app = make_app(llm_base_url=model_server.base_url, llm_model="m", max_running_turns=1)
    client = Talker(app.test_client(), model_server)
    running = client.stream(client.new_chat(), "!hang-after 1").next("start").data["turn_id"]
    other = client.new_chat()
    response = turn(client, other)
    refused(response, 429, "RATE_LIMITED")
    assert int(response.headers["Retry-After"]) >= 1
    assert client.messages(other) == []
    client.stop(running)
    assert turn(client, other, query="!say now").json["status"] == "completed"


# 500


@pytest.mark.parametrize("testing", [True, False])
def test_internal_error_says_nothing_of_the_inside(client, monkeypatch, caplog, testing):
    def stumble(*_):
        raise RuntimeError("secret detail")

    monkeypatch.setattr(Chat, "page", stumble)
    client.app.testing = testing
    response = client.get(SESSIONS)
    refused(response, 500, "INTERNAL_ERROR")
    page = client.get("/")
    assert (page.status_code, page.mimetype) == (500, "text/html")
    for said in (response, page):
        assert "secret detail" not in said.get_data(as_text=True)
        assert "Traceback" not in said.get_data(as_text=True)
        assert ".py" not in said.get_data(as_text=True)
    assert caplog.text.count("RuntimeError: secret detail") == 2


@pytest.mark.parametrize("path", ["/api/query", "/api/query/conversation", "/api/query/multimodal"])
def test_llm_error(make_app, path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
    client = Talker(make_app(llm_base_url=url, llm_model="m").test_client())
    refused(client.post(path, {"query": "x"}), 500, "LLM_ERROR")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", SESSIONS, {}),
        ("PATCH", f"{SESSIONS}/{{chat}}", {"title": "x"}),
        ("DELETE", f"{SESSIONS}/{{chat}}", None),
        ("POST", f"{SESSIONS}/{{chat}}/turn", {"query": "x"}),
        ("POST", f"{SESSIONS}/{{chat}}/turn:stream", {"query": "x"}),
    ],
)
def test_storage_error_while_the_database_is_locked(make_app, method, path, body):
    client = Talker(make_app(busy_timeout_ms=50).test_client())
    chat = client.new_chat()
    before = everything_in(client.app)
    body = {**body, "request_id": request_id()} if body is not None else None
    with closing(sqlite_module.connect(str(client.app.config["HOLDFAST"].database_file))) as other:
        other.execute("BEGIN IMMEDIATE")
        refused(client.http.open(path.format(chat=chat), method=method, json=body), 500, "STORAGE_ERROR")
        assert client.get(SESSIONS).status_code == 200, "readers go on"
    assert everything_in(client.app) == before
    assert client.http.open(path.format(chat=chat), method=method, json=body).status_code in (200, 201)


# What the table does not name


@pytest.mark.parametrize(
    "path", ["/api", "/api/", "/api/nope", f"{SESSIONS}/", f"{SESSIONS}/x/nope", "/api/%00", "/api/é"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_routes_that_are_not_there(shared, path, method):
    refused(shared.http.open(path, method=method), 404, "NOT_FOUND")


@pytest.mark.parametrize("path", ["/nope", "/apis", "/static/nope.css", "/docs/nope"])
def test_outside_the_api_people_get_a_page(shared, path):
    response = shared.http.get(path)
    assert (response.status_code, response.mimetype) == (404, "text/html")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", SESSIONS, {"GET", "POST"}),
        ("PUT", SESSIONS, {"GET", "POST"}),
        ("POST", f"{SESSIONS}/x", {"GET", "PATCH", "DELETE"}),
        ("GET", f"{SESSIONS}/x/turn", {"POST"}),
        ("PATCH", f"{SESSIONS}/x/messages", {"GET"}),
        ("POST", "/api/chat/search", {"GET"}),
        ("GET", "/api/query", {"POST"}),
        ("DELETE", "/api/chat/turns/x", {"GET"}),
        ("POST", "/api/config/current", {"GET"}),
        ("BREW", SESSIONS, {"GET", "POST"}),
    ],
)
def test_methods_that_are_not_allowed_name_those_that_are(shared, method, path, allowed):
    response = shared.http.open(path, method=method)
    refused(response, 405, "METHOD_NOT_ALLOWED")
    named = {name.strip() for name in response.headers["Allow"].split(",")}
    assert named - {"HEAD", "OPTIONS"} == allowed
