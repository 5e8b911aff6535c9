"""What the API tests share: apps that talk to the scripted model server, and what that server was sent."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest

from app import create_app
from config import Config
from models.base import db
from tests.api.talk import SESSIONS, Stream, execute, request_id
from tests.conftest import Api
from tests.model_server import ModelServer

# The smallest image of each kind that has its true signature.
IMAGES = {
    "image/png": b"\x89PNG\r\n\x1a\n" + b"\0" * 24,
    "image/jpeg": b"\xff\xd8\xff\xe0" + b"\0" * 24,
    "image/gif": b"GIF89a" + b"\0" * 24,
    "image/webp": b"RIFF\x20\0\0\0WEBPVP8 " + b"\0" * 16,
}


class Talker(Api):
    """A client that streams, stops and looks at what the model was sent."""

    def __init__(self, client: Any, model: ModelServer | None = None) -> None:
        super().__init__(client)
        self.model = model
        self.seen = len(model.requests) if model else 0

    @property
    def prompts(self) -> list[list[dict[str, Any]]]:
        """The messages of every question that the model has received from this app."""
        assert self.model is not None
        return [body["messages"] for body in self.model.requests[self.seen :]]

    def another_tab(self) -> Talker:
        tab = Talker(self.app.test_client(), self.model)
        tab.seen = self.seen
        return tab

    def patch(self, path: str, body: Any) -> Any:
        return self.http.patch(path, json=body)

    def delete(self, path: str, **query: Any) -> Any:
        return self.http.delete(path, query_string=query)

    def show(self, chat: str) -> dict[str, Any]:
        return self.get(f"{SESSIONS}/{chat}").json

    def row(self, chat: str) -> dict[str, Any]:
        """The chat as the list shows it."""
        return next(row for row in self.get(SESSIONS, limit=100).json["sessions"] if row["id"] == chat)

    def talk(self, chat: str, *queries: str) -> list[dict[str, Any]]:
        """Turns that must complete; gives their answers' messages."""
        answers = []
        for query in queries:
            response = self.ask(chat, query)
            assert response.json["status"] == "completed", response.json
            answers.append(response.json["assistant_message"])
        return answers

    def stream(self, chat: str, query: str, **more: Any) -> Stream:
        body = {"request_id": request_id(), "query": query, **more}
        return Stream(self.post(f"{SESSIONS}/{chat}/turn:stream", body))

    def attach(self, turn: str, headers: dict[str, str] | None = None, **query: Any) -> Stream:
        return Stream(self.http.get(f"/api/chat/turns/{turn}/stream", query_string=query, headers=headers))

    def turn(self, turn: str) -> Any:
        return self.get(f"/api/chat/turns/{turn}")

    def stop(self, turn: str) -> Any:
        return self.post(f"/api/chat/turns/{turn}/stop")

    def retry(self, chat: str, message: str, **body: Any) -> Any:
        return self.post(f"{SESSIONS}/{chat}/messages/{message}/retry", body)

    def stop_everything(self) -> None:
        for (turn,) in execute(self.app, "SELECT id FROM chat_turns WHERE status = 'pending'"):
            self.stop(turn)


@pytest.fixture
def talker(make_app, model_server: ModelServer) -> Talker:
    """A client of an app that waits long for its model, so that only the test decides when an answer ends."""
    app = make_app(llm_base_url=model_server.base_url, llm_model="scripted", llm_timeout=30.0)
    talker = Talker(app.test_client(), model_server)
    yield talker
    talker.stop_everything()


@pytest.fixture
def reader(make_app) -> Talker:
    """A client of an app without a model server: the built-in reader answers."""
    return Talker(make_app().test_client())


@pytest.fixture(scope="module")
def shared_app(tmp_path_factory):
    """One app for all tests of a file that write nothing, or do not mind what others wrote."""
    app = create_app(replace(Config(), data_dir=tmp_path_factory.mktemp("shared") / "data", busy_timeout_ms=2000))
    app.testing = True
    app.config["PROPAGATE_EXCEPTIONS"] = False
    yield app
    with app.app_context():
        db.session.remove()
        db.engine.dispose()


@pytest.fixture
def shared(shared_app) -> Talker:
    return Talker(shared_app.test_client())


@pytest.fixture(params=list(IMAGES))
def image_kind(request: pytest.FixtureRequest) -> str:
    return request.param


def encoded(image: bytes) -> str:
    return base64.b64encode(image).decode()
