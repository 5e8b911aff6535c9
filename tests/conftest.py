"""What the tests share: an app on a fresh database, and a client of it."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from app import create_app
from config import Config
from models.base import db
from tests.model_server import ModelServer


@pytest.fixture
def settings(tmp_path: Path) -> Config:
    return replace(Config(), data_dir=tmp_path / "data", busy_timeout_ms=2000)


@pytest.fixture
def make_app(settings: Config):
    """Apps on the same data directory, each as a process of its own would be; all are closed in the end."""
    made: list[Flask] = []

    def make(**changes: Any) -> Flask:
        app = create_app(replace(settings, **changes))
        app.testing = True
        app.config["PROPAGATE_EXCEPTIONS"] = False
        made.append(app)
        return app

    yield make
    for app in made:
        with app.app_context():
            db.session.remove()
            db.engine.dispose()


@pytest.fixture
def app(make_app) -> Flask:
    app = make_app()
    with app.app_context():
        yield app


@pytest.fixture
def client(make_app) -> Api:
    return Api(make_app().test_client())


@pytest.fixture(scope="session")
def model_server():
    with ModelServer() as server:
        yield server


@pytest.fixture
def model_client(make_app, model_server: ModelServer) -> Api:
    """A client of an app that is connected to the scripted model server."""
    app = make_app(llm_base_url=model_server.base_url, llm_model="scripted", llm_timeout=1.0, llm_connect_timeout=1.0)
    return Api(app.test_client())


class Api:
    """The chat API as a program uses it."""

    def __init__(self, client: FlaskClient) -> None:
        self.http = client
        self.app = client.application

    def get(self, path: str, **query: Any) -> Any:
        return self.http.get(path, query_string={name: value for name, value in query.items() if value is not None})

    def post(self, path: str, body: Any = None) -> Any:
        return self.http.post(path, json={} if body is None else body)

    def new_chat(self, **body: Any) -> str:
        response = self.post("/api/chat/sessions", body)
        assert response.status_code == 201, response.json
        return response.json["id"]

    def ask(self, chat: str, query: str, **more: Any) -> Any:
        body = {"request_id": str(uuid.uuid4()), "query": query, **more}
        return self.post(f"/api/chat/sessions/{chat}/turn", body)

    def messages(self, chat: str, **query: Any) -> list[dict[str, Any]]:
        return self.get(f"/api/chat/sessions/{chat}/messages", **query).json["messages"]
