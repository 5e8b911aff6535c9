"""/api/query…: kept for older clients. Each asks once; nothing is stored."""

from __future__ import annotations

import base64

import pytest

from tests.api.conftest import IMAGES, encoded
from tests.api.talk import everything_in, refused, refused_fields

PATHS = ["/api/query", "/api/query/conversation", "/api/query/multimodal"]


@pytest.mark.parametrize("path", PATHS)
def test_an_answer_without_a_chat(talker, path):
    response = talker.post(path, {"query": "!words 3", "mode": "naive", "top_k": 5})
    assert response.status_code == 200
    body = response.json
    assert {"query", "response", "mode", "metadata"} <= set(body)
    assert (body["query"], body["response"], body["mode"]) == ("!words 3", "w1 w2 w3", "naive")
    assert body["metadata"]["usage"]["completion_tokens"] == 3
    assert body["metadata"]["model"] == "scripted"
    assert everything_in(talker.app) == [[], [], []]


@pytest.mark.parametrize("path", PATHS)
def test_the_default_mode(reader, path):
    assert reader.post(path, {"query": "hello"}).json["mode"] == "hybrid"


@pytest.mark.parametrize("path", PATHS)
def test_what_the_model_is_sent(talker, path):
    talker.post(path, {"query": "hello", "temperature": 0.3, "max_tokens": 12})
    sent = talker.model.requests[-1]
    assert [message["role"] for message in sent["messages"]] == ["system", "user"]
    assert sent["messages"][1]["content"] == "hello"
    assert (sent["temperature"], sent["max_tokens"]) == (0.3, 12)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("query", "message"), [("!500 on fire", "on fire"), ("!half 2", "broke off")])
def test_a_model_that_fails(talker, path, query, message):
    response = talker.post(path, {"query": query})
    refused(response, 500, "LLM_ERROR")
    assert message in response.json["detail"]["message"]
    assert everything_in(talker.app) == [[], [], []]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("field", "value"),
    [("top_k", 0), ("top_k", "5"), ("max_tokens", 0), ("temperature", 2.5), ("query", 5), ("query", "x" * 200_001)],
)
def test_fields_that_cannot_be(shared, path, field, value):
    assert refused_fields(shared.post(path, {"query": "x", field: value})) == [field]


# Conversations

HISTORY = [
    {"role": "user", "content": "first", "timestamp": "2026-01-01T00:00:00Z"},
    {"role": "assistant", "content": "answer"},
    {"role": "user", "content": "second", "timestamp": 1767225600000},
    {"role": "assistant", "content": "", "timestamp": 1767225600.5},
]


def test_a_conversation_comes_back_with_its_two_new_messages(talker):
    body = {"query": "!say third", "mode": "bypass", "history": HISTORY}
    response = talker.post("/api/query/conversation", body).json
    assert set(response) == {"query", "response", "mode", "history", "metadata"}
    assert response["history"][:4] == HISTORY
    question, answer = response["history"][4:]
    assert (question["role"], question["content"]) == ("user", "!say third")
    assert (answer["role"], answer["content"]) == ("assistant", "third")
    assert question["timestamp"] <= answer["timestamp"]
    assert response["response"] == "third"
    sent = [(entry["role"], entry["content"]) for entry in talker.prompts[-1][1:]]
    assert sent == [*((entry["role"], entry["content"]) for entry in HISTORY), ("user", "!say third")]


def test_a_conversation_can_be_carried_on(talker):
    history = []
    for number in range(3):
        history = talker.post("/api/query/conversation", {"query": f"!say {number}", "history": history}).json[
            "history"
        ]
    assert [entry["content"] for entry in history] == ["!say 0", "0", "!say 1", "1", "!say 2", "2"]


def test_a_system_message_of_the_client_reaches_the_model(talker):
    history = [{"role": "system", "content": "Speak like a pirate."}]
    talker.post("/api/query/conversation", {"query": "hello", "history": history})
    assert {"role": "system", "content": "Speak like a pirate."} in talker.prompts[-1]


@pytest.mark.parametrize("history", ["x", 5, {}, [5], [{"role": "robot", "content": "x"}], [{"role": "user"}]])
def test_histories_that_cannot_be(shared, history):
    names = refused_fields(shared.post("/api/query/conversation", {"query": "x", "history": history}))
    assert {name.partition(".")[0] for name in names} == {"history"}


# Images, tables, equations


def test_images_reach_the_model(talker, image_kind):
    image = IMAGES[image_kind]
    item = {"type": "image", "img_base64": encoded(image), "img_mime_type": image_kind}
    assert talker.post("/api/query/multimodal", {"query": "what?", "multimodal_content": [item]}).status_code == 200
    text, shown = talker.prompts[-1][-1]["content"]
    assert text == {"type": "text", "text": "what?"}
    kind, _, data = shown["image_url"]["url"].removeprefix("data:").partition(";base64,")
    assert (kind, base64.b64decode(data)) == (image_kind, image)
    assert not (talker.app.config["HOLDFAST"].data_dir / "uploads").exists(), "nothing is stored"


def test_tables_and_equations_reach_the_model(talker):
    items = [
        {"type": "table", "table_data": "a,b\n1,2", "table_caption": "Figures"},
        {"type": "equation", "latex": "E = mc^2", "equation_caption": "Energy"},
    ]
    response = talker.post("/api/query/multimodal", {"query": "what?", "multimodal_content": items})
    assert response.json["query"] == "what?"
    sent = talker.prompts[-1][-1]["content"]
    assert sent.startswith("what?")
    for piece in ("a,b\n1,2", "Figures", "E = mc^2", "Energy"):
        assert piece in sent


@pytest.mark.parametrize(
    "item",
    [
        {"type": "image"},
        {"type": "image", "img_base64": "%%%"},
        {"type": "image", "img_base64": encoded(b"<svg/>")},
        {"type": "image", "img_base64": encoded(IMAGES["image/png"]), "img_mime_type": "image/webp"},
        {"type": "image", "img_path": "/etc/passwd"},
        {"type": "image", "img_base64": "https://example.org/x.png"},
    ],
)
def test_images_that_cannot_be(talker, item):
    asked = len(talker.prompts)
    refused(
        talker.post("/api/query/multimodal", {"query": "x", "multimodal_content": [item]}), 400, "MULTIMODAL_INVALID"
    )
    assert len(talker.prompts) == asked


@pytest.mark.parametrize("content", ["x", 5, {}, [5], [{}], [{"type": "video"}]])
def test_content_that_cannot_be(shared, content):
    names = refused_fields(shared.post("/api/query/multimodal", {"query": "x", "multimodal_content": content}))
    assert {name.partition(".")[0] for name in names} == {"multimodal_content"}
