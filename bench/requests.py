"""Single requests: what each costs, beside a bare Flask route on the same server and the raw query in SQLite."""

from __future__ import annotations

import http.client
import json
import statistics
import time
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Timing(NamedTuple):
    median: float
    p95: float

    def __str__(self) -> str:
        return f"{self.median * 1000:8.2f} {self.p95 * 1000:8.2f}"


class Client:
    """One connection that is kept open, as a browser does; cheap, so that we measure the server."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._connection = http.client.HTTPConnection(address.hostname or "", address.port)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        data = None if body is None else json.dumps(body)
        self._connection.request(method, path, data, {"Content-Type": "application/json"} if data else {})
        response = self._connection.getresponse()
        return response.status, response.read()

    def json(self, method: str, path: str, body: Any = None) -> Any:
        status, data = self.ask(method, path, body)
        assert status < 300, (status, data[:300])
        return json.loads(data)

    def first_delta(self, path: str, body: Any) -> float:
        """Seconds until the first word of a streamed answer is here; the rest is read before we go on."""
        began = time.perf_counter()
        self._connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        seconds = 0.0
        while line := response.readline():
            if not seconds and b'"delta"' in line:
                seconds = time.perf_counter() - began
        return seconds


def timing(step: Callable[[], Any], count: int = 200) -> Timing:
    """The time of a step; where it gives a number of seconds itself, that one."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        told = step()
        times.append(told if isinstance(told, float) else time.perf_counter() - began)
    times.sort()
    return Timing(statistics.median(times), times[int(len(times) * 0.95)])


def turn(chat: str, query: str = "!words 1") -> tuple[str, dict[str, str]]:
    return f"/api/chat/sessions/{chat}/turn", {"request_id": str(uuid.uuid4()), "query": query}


def deep_cursor(client: Client, pages: int) -> str:
    cursor = ""
    for _ in range(pages):
        page = client.json("GET", "/api/chat/sessions?limit=20" + (f"&cursor={cursor}" if cursor else ""))
        if not page["has_more"]:
            break
        cursor = page["next_cursor"]
    return cursor
