"""What the fault tests share: a model server that can be broken, real servers, and the database file beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.adapters.conftest import certificate  # noqa: F401, a fixture
from tests.faults.client import Client
from tests.faults.ledger import Ledger
from tests.model_server import ModelServer
from tests.server import Server


@pytest.fixture
def model():
    with ModelServer() as server:
        yield server


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


@pytest.fixture
def serve(model: ModelServer, data_dir: Path):
    """Real servers on one data directory, as many and as often as wanted; all are killed in the end."""
    started: list[Server] = []

    def start(**options: Any) -> Client:
        defaults = {"LLM_BASE_URL": model.base_url, "LLM_MODEL": "scripted", "BUSY_TIMEOUT_MS": 10_000}
        server = Server(data_dir, **(defaults | options))
        started.append(server)
        return Client(server.start())

    yield start
    for server in started:
        if hasattr(server, "process"):
            server.kill()


@pytest.fixture
def ledger(data_dir: Path) -> Ledger:
    return Ledger(data_dir)
