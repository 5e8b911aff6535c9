"""The chat API as a program uses it over a real socket, and a listener that writes down what a stream says."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import requests

from tests.server import Server

ONCE = {"Connection": "close"}  # a server that is told to end waits for connections that are kept


class Client:
    def __init__(self, server: Server) -> None:
        self.server = server

    def new_chat(self) -> str:
        response = self.server.post("/api/chat/sessions")
        assert response.status_code == 201, response.text
        return response.json()["id"]

    def post_turn(self, chat: str, query: str, request_id: str | None = None, **options: Any) -> requests.Response:
        return self.server.post(f"/api/chat/sessions/{chat}/turn", question(query, request_id), **options)

    def ask(self, chat: str, query: str, request_id: str | None = None) -> dict[str, Any]:
        """The whole answer; one that failed is an answer too."""
        response = self.post_turn(chat, query, request_id)
        assert response.status_code == 200, response.text
        return response.json()

    def ask_streamed(self, chat: str, query: str, request_id: str | None = None) -> Listener:
        path = f"/api/chat/sessions/{chat}/turn:stream"
        return Listener(lambda: self.server.post(path, question(query, request_id), stream=True, headers=ONCE)).begin()

    def attach(self, turn: str, **query: Any) -> Listener:
        path = f"/api/chat/turns/{turn}/stream"
        return Listener(lambda: self.server.get(path, params=query, stream=True, headers=ONCE)).begin()

    def turn(self, turn: str) -> dict[str, Any]:
        response = self.server.get(f"/api/chat/turns/{turn}")
        assert response.status_code == 200, response.text
        return response.json()

    def stop(self, turn: str) -> dict[str, Any]:
        response = self.server.post(f"/api/chat/turns/{turn}/stop")
        assert response.status_code == 200, response.text
        return response.json()

    def ended(self, turn: str, timeout: float = 15) -> dict[str, Any]:
        """The turn, when it has ended."""
        self.server.wait_for(lambda: self.turn(turn)["status"] != "pending", timeout)
        return self.turn(turn)

    def messages(self, chat: str) -> list[dict[str, Any]]:
        """All of them, oldest first."""
        found: list[dict[str, Any]] = []
        cursor = None
        while True:
            query = {"limit": 200} | ({"cursor": cursor} if cursor else {})
            page = self.server.get(f"/api/chat/sessions/{chat}/messages", params=query).json()
            found = page["messages"] + found
            cursor = page["next_cursor"]
            if cursor is None:
                return found

    def message_count(self, chat: str) -> int:
        return self.server.get(f"/api/chat/sessions/{chat}").json()["message_count"]


def question(query: str, request_id: str | None = None) -> dict[str, Any]:
    return {"request_id": request_id or new_request(), "query": query}


def new_request() -> str:
    return str(uuid.uuid4())


def in_background(task: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """A thread for this one task: it may wait for ever without keeping the tests from their end."""
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(task(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


class Listener:
    """Reads a stream of events in a thread of its own until it ends, however it ends."""

    def __init__(self, connect: Callable[[], requests.Response]) -> None:
        self._connect = connect
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._connected = threading.Event()
        self.response: requests.Response | None = None
        self.events: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.error: Exception | None = None

    def begin(self) -> Listener:
        self._thread.start()
        return self

    def _listen(self) -> None:
        try:
            self.response = self._connect()
            self._connected.set()
            for line in self.response.iter_lines(chunk_size=None):
                if line.startswith(b"data: "):
                    self.events.append(json.loads(line[6:]))
                    self.times.append(time.monotonic())
        except Exception as error:
            self.error = error
        finally:
            self._connected.set()

    def wait(self, timeout: float = 20) -> Listener:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f"The stream did not end: {self.events[-3:]}"
        return self

    def wait_for_text(self, text: str, timeout: float = 10) -> Listener:
        deadline = time.monotonic() + timeout
        while text not in self.text:
            assert time.monotonic() < deadline, f"{text!r} did not come: {self.events[-3:]} {self.error}"
            time.sleep(0.01)
        return self

    def close(self) -> None:
        """Closes the connection under the reader, as a closed tab does."""
        assert self._connected.wait(10)
        assert self.response is not None
        self.response.raw._fp.fp.raw._sock.shutdown(2)  # a plain close would wait for the reading thread
        self._thread.join(5)
        self.response.close()

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]

    @property
    def started(self) -> dict[str, Any] | None:
        return next(iter(self.of_type("start")), None)

    @property
    def deltas(self) -> list[str]:
        return [event["delta"] for event in self.of_type("delta")]

    @property
    def text(self) -> str:
        return "".join(self.deltas)

    @property
    def numbers(self) -> list[int]:
        return [event["seq"] for event in self.of_type("delta")]

    @property
    def final(self) -> dict[str, Any]:
        assert self.events, self.error or (self.response and self.response.text)
        assert self.events[-1]["type"] == "final", (self.events[-3:], self.error)
        return self.events[-1]["response"]
