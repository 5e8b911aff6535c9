"""Gates: which pages and host names may use a person's Holdfast, what every answer carries, and what none ever says."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace

import pytest

from config import Config, ConfigError
from models.base import sqlite_module
from models.chat import Chat
from tests.api.conftest import Talker
from tests.api.talk import SESSIONS, everything_in, request_id

SAFE = {"GET", "HEAD", "OPTIONS"}
KEY = "sk-hunter2-never-to-be-seen"
CSP = {
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data: blob:",
    "font-src 'self'",
    "connect-src 'self'",
    "form-action 'self'",
    "base-uri 'none'",
    "frame-ancestors 'none'",
}


def routes(app):
    """Every method and address that there is, names filled in: a new route is covered the day it is born."""
    for rule in app.url_map.iter_rules():
        values = {name: "css/app.css" if rule.endpoint == "static" else request_id() for name in rule.arguments}
        _, path = rule.build(values, append_unknown=False)
        for method in sorted(rule.methods):
            yield method, path


# From which pages


FOREIGN = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "CROSS-SITE"},
    {"Sec-Fetch-Site": "nonsense"},
    {"Sec-Fetch-Site": ""},
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost.evil.example"},
    {"Origin": "http://evil.example/localhost"},
    {"Origin": "http://localhost:8001"},
    {"Origin": "http://user@localhost"},
]
OURS = [
    {},
    {"Sec-Fetch-Site": "same-origin"},
    {"Sec-Fetch-Site": "same-origin", "Origin": "http://localhost"},
    {"Origin": "http://localhost"},
    {"Origin": "https://localhost"},
    {"Origin": "http://LOCALHOST"},
]


def test_there_are_unsafe_routes_to_walk(shared_app):
    unsafe = [method for method, _ in routes(shared_app) if method not in SAFE]
    assert len(unsafe) >= 12
    assert {"POST", "PATCH", "DELETE"} <= set(unsafe)


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_every_unsafe_route_refuses_other_sites(shared, headers):
    chat = shared.new_chat()
    before = everything_in(shared.app)
    for method, path in routes(shared.app):
        if method not in SAFE:
            response = shared.http.open(path, method=method, headers=headers)
            assert response.status_code == 403, (method, path)
            if path.startswith("/api/"):
                assert response.json["detail"]["code"] == "FORBIDDEN"
    for body in ({}, {"title": "x"}):
        assert shared.http.post(SESSIONS, json=body, headers=headers).status_code == 403
        assert shared.http.patch(f"{SESSIONS}/{chat}", json=body, headers=headers).status_code == 403
    assert shared.http.delete(f"{SESSIONS}/{chat}?hard=true", headers=headers).status_code == 403
    assert shared.http.open("/api/nowhere", method="PUT", headers=headers).status_code == 403
    assert everything_in(shared.app) == before


@pytest.mark.parametrize("headers", OURS, ids=str)
def test_every_unsafe_route_takes_requests_of_our_own(shared, headers):
    for method, path in routes(shared.app):
        if method not in SAFE:
            response = shared.http.open(path, method=method, headers=headers)
            assert response.status_code not in (403, 421), (method, path)
    assert shared.http.post(SESSIONS, json={}, headers=headers).status_code == 201


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_a_link_from_elsewhere_may_open_a_page(shared, headers):
    assert shared.http.get("/", headers=headers).status_code == 200
    assert shared.http.get("/health", headers=headers).status_code == 200


@pytest.mark.parametrize("headers", [{"Origin": "http://192.168.1.5:8000"}, {"Origin": "http://chat.intranet:8000"}])
def test_an_intranet_name_with_its_port(make_app, headers):
    app = make_app(host="0.0.0.0", allow_anyone=True, trusted_hosts=("chat.intranet",))
    host = headers["Origin"].removeprefix("http://")
    assert app.test_client().post(SESSIONS, json={}, headers={**headers, "Host": host}).status_code == 201
    assert app.test_client().post(SESSIONS, json={}, headers={**headers, "Host": "192.168.1.5"}).status_code == 403


# Under which names

LOOPBACK = [
    "localhost",
    "localhost:8000",
    "LOCALHOST",
    "localhost.",
    "127.0.0.1",
    "127.0.0.1:5000",
    "127.8.8.8",
    "[::1]",
    "[::1]:80",
]
STRANGERS = [
    "evil.example",
    "localhost.evil.example",
    "evil.example:8000",
    "10.0.0.5",
    "127.0.0.1.evil.example",
    "evillocalhost",
    "0.0.0.0",
]


@pytest.mark.parametrize("host", LOOPBACK)
def test_loopback_names_are_known(shared, host):
    assert shared.http.get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", STRANGERS)
def test_every_route_refuses_foreign_names(shared, host):
    before = everything_in(shared.app)
    for method, path in routes(shared.app):
        response = shared.http.open(path, method=method, headers={"Host": host})
        assert response.status_code == 421, (method, path)
        response.close()
    assert shared.http.get("/nowhere", headers={"Host": host}).status_code == 421
    assert shared.http.get("/api/nowhere", headers={"Host": host}).json["detail"]["code"] == "UNKNOWN_HOST"
    assert everything_in(shared.app) == before


def test_trusted_hosts_are_known(make_app):
    client = make_app(trusted_hosts=("chat.intranet", "other")).test_client()
    for host in ("chat.intranet", "CHAT.intranet:8000", "other", "localhost"):
        assert client.get("/health", headers={"Host": host}).status_code == 200
    for host in ("intranet", "x.chat.intranet", "chat.intranet.evil.example"):
        assert client.get("/health", headers={"Host": host}).status_code == 421


def test_on_the_network_numbers_are_known_and_foreign_names_are_not(make_app):
    """An address in numbers cannot be rebound by a name server."""
    client = make_app(host="0.0.0.0", allow_anyone=True).test_client()
    assert client.get("/health", headers={"Host": "192.168.1.5:8000"}).status_code == 200
    assert client.get("/health", headers={"Host": "evil.example"}).status_code == 421


# What every answer carries


def carries_the_headers(response, static=False):
    headers = response.headers
    assert {part.strip() for part in headers["Content-Security-Policy"].split(";")} == CSP
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert "camera=()" in headers["Permissions-Policy"]
    assert static or headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in headers
    response.close()


def test_every_route_answers_with_the_headers(shared):
    for method, path in routes(shared.app):
        carries_the_headers(shared.http.open(path, method=method), static=path.startswith("/static/"))


@pytest.mark.parametrize(
    ("status", "request_"),
    [
        (400, {"method": "POST", "path": SESSIONS, "data": b"x"}),
        (403, {"method": "POST", "path": SESSIONS, "headers": {"Origin": "http://evil.example"}}),
        (404, {"path": "/api/nowhere"}),
        (404, {"path": "/nowhere"}),
        (404, {"path": "/static/nowhere.css"}),
        (405, {"method": "PUT", "path": SESSIONS}),
        (405, {"method": "POST", "path": "/docs"}),
        (416, {"path": "/static/css/app.css", "headers": {"Range": "bytes=999999-"}}),
        (421, {"path": "/", "headers": {"Host": "evil.example"}}),
        (422, {"path": f"{SESSIONS}?limit=0"}),
    ],
)
def test_errors_carry_the_headers_too(shared, status, request_):
    response = shared.http.open(**request_)
    assert response.status_code == status
    carries_the_headers(response)


@pytest.mark.parametrize("path", ["/", SESSIONS])
def test_an_unexpected_error_carries_the_headers_too(client, monkeypatch, path):
    monkeypatch.setattr(Chat, "page", lambda *_: 1 / 0)
    response = client.get(path)
    assert response.status_code == 500
    carries_the_headers(response)


def test_a_body_too_large_carries_the_headers_too(make_app):
    response = make_app(max_body_mb=1).test_client().post(SESSIONS, data=b" " * 1_000_001)
    assert response.status_code == 413
    carries_the_headers(response)


def test_streams_carry_the_headers_too(talker):
    chat = talker.new_chat()
    stream = talker.stream(chat, "!say hello")
    turn = stream.rest()[0].data["turn_id"]
    carries_the_headers(stream.response)
    carries_the_headers(talker.attach(turn).response)


# What none ever says


def seen(response):
    """All that a client sees of an answer."""
    return f"{response.status}\n{response.headers}\n{response.get_data(as_text=True)}\n"


def test_the_key_is_never_shown_or_logged(make_app, model_server, caplog):
    caplog.set_level(logging.DEBUG)
    app = make_app(llm_base_url=model_server.base_url, llm_model="m", llm_api_key=KEY, llm_timeout=0.3)
    client = Talker(app.test_client(), model_server)
    whole = ""
    for method, path in routes(app):
        whole += seen(client.http.open(path, method=method))
    # An error status without words of its own makes the scripted server repeat the key that it was sent.
    for query in ("!401", "!403", "!500", "!reset", "!hang", "!half 2", "!html", "!say fine"):
        for where in ("turn", "turn:stream"):
            body = {"request_id": request_id(), "query": query}
            whole += seen(client.post(f"{SESSIONS}/{client.new_chat()}/{where}", body))
        whole += seen(client.post("/api/query", {"query": query}))
    assert model_server.log[-1]["headers"]["authorization"] == f"Bearer {KEY}"
    assert whole.count("your key: [key]") >= 9
    assert KEY not in whole
    assert KEY not in caplog.text


def test_the_key_is_not_in_the_database(make_app, model_server):
    app = make_app(llm_base_url=model_server.base_url, llm_model="m", llm_api_key=KEY)
    client = Talker(app.test_client(), model_server)
    chat = client.new_chat()
    client.ask(chat, "!401")
    client.ask(chat, "!say hello")
    for file in app.config["HOLDFAST"].data_dir.rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes(), file


def test_the_configuration_is_shown_without_its_secrets(make_app):
    app = make_app(llm_base_url="http://person:hunter2@127.0.0.1:9/v1", llm_model="m", llm_api_key=KEY)
    response = app.test_client().get("/api/config/current")
    assert response.status_code == 200
    settings = response.json["settings"]
    assert (settings["LLM_API_KEY"], settings["LLM_MODEL"], settings["HISTORY_LIMIT"]) == ("********", "m", 20)
    assert settings["LLM_BASE_URL"] == "http://********@127.0.0.1:9/v1"
    assert KEY not in response.get_data(as_text=True)
    assert "hunter2" not in response.get_data(as_text=True)


def test_a_key_that_is_not_set_is_not_shown_as_set(shared):
    assert shared.get("/api/config/current").json["settings"]["LLM_API_KEY"] == ""


# Who may reach it at all


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "chat.intranet", "8.8.8.8", "localhost.evil.example"])
def test_it_does_not_serve_the_network_unless_that_is_meant(host):
    with pytest.raises(ConfigError, match="ALLOW_ANYONE"):
        Config.from_environment({"HOST": host})
    with pytest.raises(ConfigError, match="ALLOW_ANYONE"):
        Config.from_environment({"HOST": host, "ALLOW_ANYONE": "0"})
    assert Config.from_environment({"HOST": host, "ALLOW_ANYONE": "1"}).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_it_serves_this_machine(host):
    assert Config.from_environment({"HOST": host}).on_loopback


def test_by_default_it_serves_this_machine_only():
    assert Config.from_environment({}).host == "127.0.0.1"
    assert replace(Config(), host="0.0.0.0").on_loopback is False


# Under a sub-path


@pytest.mark.parametrize("by", ["URL_PREFIX", "X-Forwarded-Prefix"])
@pytest.mark.parametrize("stripped", [True, False])
def test_it_stands_under_a_sub_path(make_app, by, stripped):
    app = make_app(url_prefix="/holdfast" if by == "URL_PREFIX" else "")
    headers = {} if by == "URL_PREFIX" else {"X-Forwarded-Prefix": "/holdfast/"}
    prefix = "" if stripped else "/holdfast"
    client = app.test_client()
    assert 'href="/holdfast/static/' in client.get(f"{prefix}/", headers=headers).get_data(as_text=True)
    assert client.get(f"{prefix}{SESSIONS}", headers=headers).status_code == 200
    assert client.get(f"{prefix}/api/nowhere", headers=headers).json["detail"]["code"] == "NOT_FOUND"


@pytest.mark.parametrize(
    "prefix", ["//evil.example", "/a/../b c", "javascript:x", '/"><script>', "/\xff", "/" + "a/" * 3]
)
def test_a_prefix_without_sense_reaches_no_page(shared, prefix):
    page = shared.http.get("/", headers={"X-Forwarded-Prefix": prefix}).get_data(as_text=True)
    assert "<script>" not in page
    assert "evil.example" not in page
    assert "javascript:" not in page


# How it is doing


def test_health_and_readiness(shared):
    assert (shared.get("/health").status_code, shared.get("/health").json["status"]) == (200, "ok")
    ready = shared.get("/ready")
    assert (ready.status_code, ready.json["status"]) == (200, "ready")
    assert ready.json["database"]["writable"] is True
    assert ready.json["provider"]["name"] == "builtin"
    assert isinstance(ready.json["index"]["waiting"], int)


def test_not_ready_while_the_database_cannot_be_written(make_app):
    app = make_app(busy_timeout_ms=50)
    with closing(sqlite_module.connect(str(app.config["HOLDFAST"].database_file))) as other:
        other.execute("BEGIN IMMEDIATE")
        response = app.test_client().get("/ready")
        assert (response.status_code, response.json["database"]["writable"]) == (503, False)
        assert app.test_client().get("/health").status_code == 200
    assert app.test_client().get("/ready").status_code == 200
