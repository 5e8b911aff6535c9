"""The API's description: true OpenAPI, complete, readable, and what the API really does."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from config import ROOT
from routes.api.contract import ENDPOINTS
from tests.api.conftest import Talker
from tests.api.talk import SESSIONS

TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))


@pytest.fixture(scope="module")
def description(shared_app):
    response = shared_app.test_client().get("/openapi.json")
    assert (response.status_code, response.mimetype) == (200, "application/json")
    return response.json


def operations(description):
    return [
        (method, path, operation)
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    ]


# The description


def test_it_is_openapi_3_1(description):
    assert description["openapi"].startswith("3.1.")
    assert [str(error) for error in OPENAPI_31_VALIDATOR.iter_errors(description)] == []


def test_every_api_route_is_described(shared_app, description):
    described = {(method.upper(), path) for method, path, _ in operations(description)}
    there = {
        (method, re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule))
        for rule in shared_app.url_map.iter_rules()
        for method in rule.methods - {"HEAD", "OPTIONS"}
        if rule.rule.startswith("/api/") or rule.rule in ("/health", "/ready")
    }
    assert described == there


CONTRACT = """
POST /api/chat/sessions
GET /api/chat/sessions
GET /api/chat/sessions/{}
GET /api/chat/sessions/{}/messages
PATCH /api/chat/sessions/{}
DELETE /api/chat/sessions/{}
POST /api/chat/sessions/{}/turn
POST /api/chat/sessions/{}/turn:stream
GET /api/chat/turns/{}/stream
POST /api/chat/turns/{}/stop
POST /api/chat/sessions/{}/messages/{}/retry
POST /api/chat/sessions/{}/messages/{}/retry:stream
PATCH /api/chat/sessions/{}/messages/{}
GET /api/chat/search
POST /api/query
POST /api/query/conversation
POST /api/query/multimodal
GET /health
GET /ready
GET /api/config/current
""".split("\n")[1:-1]


@pytest.mark.parametrize("line", CONTRACT)
def test_every_endpoint_of_the_contract_is_there(description, line):
    assert line in {f"{method.upper()} {re.sub('{.*?}', '{}', path)}" for method, path, _ in operations(description)}


def test_operations_have_names_of_their_own_and_say_what_they_do(description):
    names = [operation["operationId"] for _, _, operation in operations(description)]
    assert len(set(names)) == len(names)
    for _, path, operation in operations(description):
        assert operation["summary"].endswith("."), path
        assert set(re.findall(r"{(\w+)}", path)) == {
            parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"
        }


def test_every_reference_leads_somewhere(description):
    there = {f"#/components/schemas/{name}" for name in description["components"]["schemas"]}
    used = set(re.findall(r"'\$ref': '([^']+)'", str(description)))
    assert used
    assert used <= there


def test_what_is_required_is_said_to_be(description):
    schemas = description["components"]["schemas"]
    assert set(schemas["TurnRequest"]["required"]) == {"request_id", "query"}
    for name in ("StatelessRequest", "ConversationRequest", "MultimodalRequest"):
        assert schemas[name]["required"] == ["query"]
    for name in ("NewSession", "SessionChange", "RetryRequest"):
        assert "required" not in schemas[name]
    turn = schemas["TurnRequest"]["properties"]
    assert turn["mode"]["enum"] == ["naive", "local", "global", "hybrid", "mix", "bypass"]
    assert turn["mode"]["default"] == "hybrid"
    assert (turn["query"]["maxLength"], turn["request_id"]["format"]) == (200_000, "uuid")


@pytest.mark.parametrize(
    ("operation", "statuses"),
    [
        (("post", f"{SESSIONS}/{{session_id}}/turn"), {"200", "400", "404", "409", "413", "422", "429", "500"}),
        (("get", SESSIONS), {"200", "400", "422", "500"}),
        (("post", SESSIONS), {"201", "400", "413", "422", "500"}),
        (("post", "/api/query"), {"200", "400", "413", "422", "429", "500"}),
        (("get", "/ready"), {"200", "503", "500"}),
    ],
)
def test_statuses_are_described(description, operation, statuses):
    method, path = operation
    assert set(description["paths"][path][method]["responses"]) == statuses


def test_codes_are_described(description):
    said = str(description["paths"])
    for code in (
        *("BAD_REQUEST", "EMPTY_QUERY", "MISSING_REQUEST_ID", "INVALID_MODE", "INVALID_CURSOR", "MULTIMODAL_INVALID"),
        *("SESSION_NOT_FOUND", "MESSAGE_NOT_FOUND", "IDEMPOTENCY_CONFLICT", "TURN_IN_PROGRESS", "NOT_LATEST_MESSAGE"),
        *("PAYLOAD_TOO_LARGE", "VALIDATION_ERROR", "RATE_LIMITED", "LLM_ERROR", "STORAGE_ERROR"),
    ):
        assert code in said, code


# The page


def test_the_page_lists_every_path_and_every_shape(shared, description):
    response = shared.get("/docs")
    assert (response.status_code, response.mimetype) == (200, "text/html")
    page = html.unescape(response.get_data(as_text=True))
    for method, path, operation in operations(description):
        assert f"<code>{path}</code>" in page
        assert f'id="{operation["operationId"]}"' in page
        assert f">{method.upper()}</span> <code>{path}</code>" in page
    for name in description["components"]["schemas"]:
        assert f'id="{name}"' in page
    links = set(re.findall(r'href="#(\w+)"', page))
    assert links <= set(re.findall(r'id="(\w+)"', page))


INLINE = {
    "a script": r"<script(?![^>]*\ssrc=)",
    "a style": r"<style",
    "a style attribute": r"\sstyle\s*=",
    "an event handler": r"<[^>]*\son[a-z]+\s*=",
    "an htmx event handler": r"\s(?:data-)?hx-on",
    "a javascript: address": r"javascript:",
    "a remote part": r"(?:src|href|action)\s*=\s*[\"']?(?:https?:)?//",
    "text that is not escaped": r"\|\s*safe\b",
}


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_inline_in_any_template(template: Path):
    text = template.read_text()
    found = [what for what, pattern in INLINE.items() if re.search(pattern, text, re.IGNORECASE)]
    assert found == []


@pytest.mark.parametrize("path", ["/", "/docs", "/nowhere"])
def test_nothing_is_inline_in_what_is_sent(shared, path):
    page = shared.get(path).get_data(as_text=True)
    assert [what for what, pattern in INLINE.items() if re.search(pattern, page, re.IGNORECASE)] == []


def test_what_people_typed_is_escaped_on_the_start_page(reader):
    reader.new_chat(title="<script>alert(1)</script>")
    page = reader.get("/").get_data(as_text=True)
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


# What the API really does


def no_field_is_refused_that_was_described_so(_context, response, case):
    """No field of what fits the description is blamed; but which message may be changed is no question of shape."""
    fits = case.meta.generation.mode.is_positive
    if fits and response.status_code == 422 and "{message_id}" not in case.path.rpartition("/")[2]:
        # Of the body as a whole a description cannot say all: numbers past 64 bits, say, at any depth.
        assert [error["field"] for error in response.json()["detail"]["extra"]["errors"]] == ["body"]


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    negative_data_rejection,
    no_field_is_refused_that_was_described_so,
]
DOORS = [(endpoint.method, re.sub(r"<(\w+)>", r"{\1}", endpoint.path)) for endpoint in ENDPOINTS]
BOUNDED = settings(
    max_examples=12, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture(scope="module")
def api(shared_app):
    schema = schemathesis.openapi.from_wsgi("/openapi.json", shared_app)
    schema.config.generation.allow_x00 = False  # refused in texts at any depth, which a description cannot say
    return schema


@pytest.fixture(scope="module")
def there(shared_app):
    """Names of things that are there, so that requests get past the first look."""
    client = Talker(shared_app.test_client())
    chat = client.new_chat()
    turn = client.ask(chat, "hello").json
    return {"session_id": chat, "message_id": turn["assistant_message"]["id"], "turn_id": turn["turn_id"]}


def check(strategy):
    @BOUNDED
    @given(case=strategy)
    def holds(case):
        streams = "stream" in case.path.rpartition("/")[2]
        case.call_and_validate(checks=CHECKS if streams else [*CHECKS, response_schema_conformance])

    holds()


@pytest.mark.parametrize(("method", "path"), DOORS)
def test_it_does_what_it_says(api, method, path):
    check(api[path][method].as_strategy())


@pytest.mark.parametrize(("method", "path"), [door for door in DOORS if "{" in door[1] and door[0] != "DELETE"])
def test_it_does_what_it_says_of_things_that_are_there(api, there, method, path):
    names = {name: there[name] for name in re.findall(r"{(\w+)}", path)}
    check(api[path][method].as_strategy(path_parameters=names))


@pytest.mark.parametrize(("method", "path"), DOORS)
def test_it_refuses_what_it_says_it_refuses(api, there, method, path):
    operation = api[path][method]
    names = {name: there[name] for name in re.findall(r"{(\w+)}", path)}
    if operation.query or operation.body:
        check(operation.as_strategy(GenerationMode.NEGATIVE, path_parameters=names))
