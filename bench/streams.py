"""Many answers at once: does every word arrive, in order and in time, and do other requests stay quick?"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import time
import uuid
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

import psutil

from tests.server import Server


class StreamClient(asyncio.Protocol):
    """Asks one question and keeps what comes with the time at which it came; it is read only when all is over."""

    def __init__(self, host: str, path: str, body: bytes) -> None:
        self.request = (
            f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        ).encode() + body
        self.received: list[tuple[float, bytes]] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(self.request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.received.append((time.time(), data))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


@dataclass
class Result:
    streams: int
    failed: int = 0
    seconds: float = 0
    first_words: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    memory_before: float = 0
    memory_peak: float = 0


def measure(server: Server, streams: int, words: int, per_second: float) -> Result:
    return asyncio.run(_measure(server, streams, words, per_second))


async def _measure(server: Server, streams: int, words: int, per_second: float) -> Result:
    chats = [server.post("/api/chat/sessions").json()["id"] for _ in range(streams)]
    result = Result(streams, memory_before=memory(server))
    address = urlsplit(server.url)
    watch = asyncio.create_task(_watch(server, address, result))
    began = time.time()
    clients = await asyncio.gather(*(_ask(address, chat, words, per_second) for chat in chats))
    await asyncio.gather(*(client.done for client in clients))
    result.seconds = time.time() - began
    watch.cancel()
    for client in clients:
        _judge(client, began, words, result)
    return result


async def _ask(address: SplitResult, chat: str, words: int, per_second: float) -> StreamClient:
    body = json.dumps({"request_id": str(uuid.uuid4()), "query": f"!stamped {words} {per_second:g}"}).encode()
    path = f"/api/chat/sessions/{chat}/turn:stream"
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(
        lambda: StreamClient(address.netloc, path, body), address.hostname, address.port
    )
    return client


async def _watch(server: Server, address: SplitResult, result: Result) -> None:
    """Beside the streams: an ordinary request ten times a second, and the server's memory."""
    path = "/api/chat/sessions?limit=20"
    while True:
        began = time.perf_counter()
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
        while more := await reader.read():
            answer += more
        writer.close()
        assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
        result.others.append(time.perf_counter() - began)
        result.memory_peak = max(result.memory_peak, memory(server))
        await asyncio.sleep(0.1)


def _judge(client: StreamClient, began: float, words: int, result: Result) -> None:
    """Whole, in order, and the same as what was stored; else the stream counts as failed."""
    text, first, seqs, final = "", None, [], None
    buffer = b""
    for arrived, data in client.received:
        buffer += data
        *events, buffer = buffer.split(b"\n\n")
        for event in events:
            found = re.search(rb"data: (\{.*\})", event)
            content = json.loads(found[1]) if found else {}
            if content.get("type") == "delta":
                first = first or arrived
                seqs.append(content["seq"])
                text += content["delta"]
                result.latencies += [arrived - float(sent) for sent in re.findall(r"(\d+\.\d+);", content["delta"])]
            elif content.get("type") == "final":
                final = content["response"]
    stored = final and final["assistant_message"] and final["assistant_message"]["content"]
    if stored != text or seqs != list(range(1, len(seqs) + 1)) or text.count(";") != words:
        result.failed += 1
    if first:
        result.first_words.append(first - began)


def memory(server: Server) -> float:
    return sum(psutil.Process(pid).memory_info().rss for pid in [server.process.pid, *server.worker_pids()]) / 1e6


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else float("nan")


def describe(result: Result, per_second: float) -> str:
    parts = [
        f"{result.streams:5} × {per_second:g}/s: failed {result.failed}, {result.seconds:5.1f} s",
        f"first word median {statistics.median(result.first_words):.2f} p95 {quantile(result.first_words, 0.95):.2f} s",
        f"word delay median {statistics.median(result.latencies) * 1000:.0f}"
        f" p95 {quantile(result.latencies, 0.95) * 1000:.0f} ms",
        f"others p95 {quantile(result.others, 0.95) * 1000:.0f} ms ({len(result.others)})",
        f"memory {result.memory_before:.0f} → {result.memory_peak:.0f} MB",
    ]
    return ", ".join(parts)
