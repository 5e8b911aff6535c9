"""A model server of our own, for tests and benches: it speaks OpenAI's API and does what the question tells it to.

A question that starts with a directive chooses what happens; directives may follow each other (`!close !words 5`).
Without one the answer is `You said: <the question>`.

    !say TEXT             these words                       !hang                 never answers
    !words N [R]          w1 w2 … wN, R words a second      !hang-after N         N words, then silence
    !slow R [TEXT]        these words, R a second           !sleep-headers S      waits S seconds, then answers
    !stamped N R          N words, each its time of sending !trickle              a few bytes at a time
    !endless              words without end                 !reset                resets before the answer
    !huge-line            one line without end              !reset-after N        N words, then resets
    !split-utf8           Chinese, cut inside characters    !half N               N words, then a tidy end too early
    !noisy                comments, event: lines, CRLF      !cut N                N words, then closes without an end
    !plain                JSON although a stream was asked  !html                 200 with a web page
    !no-usage             does not tell the usage           !empty-choices        no choice in any event
    !no-done              finish_reason, but no [DONE]      !malformed            an event that is not JSON
    !linger               stays open after [DONE]           !error-in-stream      words, then an error object
    !hang-body STATUS     half an error body, then silence
    !finish-with-every-word TEXT
    !close                Connection: close, not chunked    !redirect             302 to another path
    !picky                400 when asked stream_options     !429 S [TEXT]         Retry-After: S
    !raw JSON-STRING      these bytes instead of HTTP       !STATUS [TEXT]        any other error status
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import heapq
import json
import math
import re
import resource
import socket
import ssl
import struct
import threading
import time
from collections.abc import Awaitable, Callable
from functools import lru_cache
from http import HTTPStatus
from typing import Any

MODEL = "scripted"
CHINESE = "你好，世界。今天的天气很好，我们去公园散步吧。"
DONE = b"data: [DONE]\n\n"
LAST_CHUNK = b"0\r\n\r\n"
RESET_ON_CLOSE = struct.pack("ii", 1, 0)

Record = dict[str, Any]
Directive = Callable[["Exchange", str], Awaitable[None]]
directives: dict[str, Directive] = {}


def directive(name: str) -> Callable[[Directive], Directive]:
    def register(function: Directive) -> Directive:
        directives[name] = function
        return function

    return register


def data(event: Any) -> bytes:
    return b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n"


@lru_cache(50_000)
def event(delta: str | None, finish: str | None = None) -> bytes:
    """One event of a stream; cached, since a bench sends the same words a million times."""
    piece = {} if delta is None else {"content": delta}
    choice = {"index": 0, "delta": piece, "logprobs": None, "finish_reason": finish}
    return data({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": MODEL, "choices": [choice]})


STAMPED = event("@").split(b"@")


@lru_cache(50_000)
def framed(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def words_of(text: str) -> list[str]:
    return re.findall(r"\S+\s*|\s+", text)


def numbered(count: int) -> list[str]:
    return [f"w{n} " for n in range(1, count)] + [f"w{count}"]


def embedding(text: str, size: int = 16) -> list[float]:
    """Words hashed into a few dimensions: the same text gives the same vector, similar texts similar ones."""
    vector = [0.0] * size
    for word in re.findall(r"\w", text) + re.findall(r"\w+", text.lower()):
        digest = hashlib.sha256(word.encode()).digest()
        vector[digest[0] % size] += 1 if digest[1] % 2 else -1
    length = math.sqrt(sum(x * x for x in vector)) or 1.0
    return [x / length for x in vector]


class Ticker:
    """One timer for all paced streams: at 20,000 words a second a timer for each word would be most of the work."""

    STEP = 0.004

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.heap: list[tuple[float, int, Paced]] = []
        self.timer: asyncio.TimerHandle | None = None
        self.count = 0

    def add(self, stream: Paced) -> None:
        self.count += 1
        heapq.heappush(self.heap, (stream.due, self.count, stream))
        if self.timer is None:
            self.timer = self.loop.call_at(stream.due, self.tick)
        elif stream.due < self.timer.when():
            self.timer.cancel()
            self.timer = self.loop.call_at(stream.due, self.tick)

    def tick(self) -> None:
        now = self.loop.time()
        heap = self.heap
        while heap and heap[0][0] <= now:
            _, count, stream = heap[0]
            if stream.advance(now):
                heapq.heapreplace(heap, (stream.due, count, stream))
            else:
                heapq.heappop(heap)
        self.timer = self.loop.call_at(max(heap[0][0], now + self.STEP), self.tick) if heap else None


class Paced:
    """Words of one answer that are sent at a fixed rate."""

    __slots__ = ("done", "due", "exchange", "next", "period", "stamped", "words")

    def __init__(self, exchange: Exchange, words: list[str], rate: float, stamped: bool = False) -> None:
        loop = asyncio.get_running_loop()
        self.exchange, self.words, self.period, self.stamped = exchange, words, 1 / rate, stamped
        self.next = 0
        self.due = loop.time()
        self.done: asyncio.Future[None] = loop.create_future()

    def advance(self, now: float) -> bool:
        """Sends what is due and says whether there is more to come."""
        if self.done.done() or self.exchange.connection.gone:
            return False
        while self.due <= now and self.next < len(self.words):
            if self.stamped:
                self.exchange.send(b"%b%.6f;%b" % (STAMPED[0], time.time(), STAMPED[1]))
            else:
                self.exchange.word(self.words[self.next])
            self.exchange.record["words_sent"] += 1
            self.next += 1
            self.due += self.period
        if self.next < len(self.words):
            return True
        self.done.set_result(None)
        return False


class Exchange:
    """One question and its answer."""

    def __init__(self, connection: Connection, record: Record) -> None:
        self.connection, self.record, self.server = connection, record, connection.server
        self.body = record["body"] if isinstance(record["body"], dict) else {}
        self.write = connection.transport.write
        self.chunked = True
        self.usage = bool((self.body.get("stream_options") or {}).get("include_usage"))
        self.done_line = True
        self.linger = False

    @property
    def question(self) -> str:
        asked = [m for m in self.body.get("messages", []) if m.get("role") == "user"]
        content = asked[-1].get("content", "") if asked else ""
        if isinstance(content, list):
            content = " ".join(part.get("text", "") for part in content)
        return str(content)

    # What is written, from the whole response down to one word

    def respond(self, status: int, body: bytes, kind: str = "application/json", **headers: str) -> None:
        headers = {"Content-Type": kind, "Content-Length": str(len(body)), **headers}
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        phrase = HTTPStatus(status).phrase
        self.write(f"HTTP/1.1 {status} {phrase}\r\n{lines}\r\n".encode() + body)

    def json(self, value: Any, status: int = 200, **headers: str) -> None:
        self.respond(status, json.dumps(value).encode(), **headers)

    def head(self) -> None:
        framing = "Transfer-Encoding: chunked" if self.chunked else "Connection: close"
        self.write(f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{framing}\r\n\r\n".encode())

    def send(self, payload: bytes) -> None:
        self.write(b"%x\r\n%b\r\n" % (len(payload), payload) if self.chunked else payload)

    def word(self, text: str) -> None:
        self.write(framed(event(text)) if self.chunked else event(text))

    def tell_usage(self, completion: int) -> None:
        prompt = sum(len(words_of(str(m.get("content")))) for m in self.body.get("messages", []))
        usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        self.send(data({"id": "chatcmpl-1", "model": MODEL, "choices": [], "usage": usage}))

    async def end(self, words: int) -> None:
        self.send(event(None, "stop"))
        if self.usage:
            self.tell_usage(words)
        if self.done_line:
            self.send(DONE)
        if self.linger:
            await self.forever()
        self.close_body()

    def close_body(self) -> None:
        if self.chunked:
            self.write(LAST_CHUNK)
        else:
            self.connection.transport.close()

    async def forever(self) -> None:
        await asyncio.get_running_loop().create_future()

    def reset(self) -> None:
        """A reset, not a polite close."""
        sock = self.connection.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.connection.transport.abort()

    # Whole answers

    async def answer(self, words: list[str], rate: float = 0, stamped: bool = False) -> None:
        if not self.body.get("stream"):
            return self.whole("".join(words))
        self.head()
        self.send(data({"model": MODEL, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}))
        await self.speak(words, rate, stamped)
        await self.end(len(words))
        return None

    async def speak(self, words: list[str], rate: float = 0, stamped: bool = False) -> None:
        if rate:
            paced = Paced(self, words, rate, stamped)
            self.server.ticker.add(paced)
            await paced.done
        else:
            payloads = [event(word) for word in words]
            self.write(b"".join(map(framed, payloads) if self.chunked else payloads))
            self.record["words_sent"] += len(words)

    def whole(self, text: str) -> None:
        message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": 1, "completion_tokens": len(words_of(text)), "total_tokens": len(words_of(text)) + 1}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        self.json({"object": "chat.completion", "model": MODEL, "choices": [choice], "usage": usage})

    async def begin(self, count: int) -> None:
        """The head and some words of an answer that will not end well."""
        self.head()
        await self.speak(numbered(count) if count else [])

    async def obey(self, text: str) -> None:
        found = re.match(r"!([a-z0-9-]+)\s?(.*)", text, re.DOTALL)
        name, rest = found.groups() if found else ("", text)
        if name in directives:
            await directives[name](self, rest)
        elif name.isdigit() and name in {str(int(status)) for status in HTTPStatus}:
            self.fail(int(name), rest)
        elif self.server.words:
            await self.answer(numbered(self.server.words), self.server.rate)
        else:
            await self.answer(words_of(f"You said: {text}"), self.server.rate)

    def fail(self, status: int, message: str, **headers: str) -> None:
        key = self.record["headers"].get("authorization", "").removeprefix("Bearer ")
        message = message or f"{HTTPStatus(status).phrase} (your key: {key})"
        self.json({"error": {"message": message, "type": "scripted"}}, status, **headers)


@directive("say")
async def say(exchange: Exchange, text: str) -> None:
    await exchange.answer(words_of(text))


@directive("words")
async def words(exchange: Exchange, text: str) -> None:
    count, _, rate = text.partition(" ")
    await exchange.answer(numbered(int(count)), float(rate or exchange.server.rate))


@directive("slow")
async def slow(exchange: Exchange, text: str) -> None:
    rate, _, rest = text.partition(" ")
    await exchange.answer(words_of(rest) or numbered(20), float(rate))


@directive("stamped")
async def stamped(exchange: Exchange, text: str) -> None:
    count, rate = text.split()[:2]
    await exchange.answer([""] * int(count), float(rate), stamped=True)


@directive("hang")
async def hang(exchange: Exchange, text: str) -> None:
    await exchange.forever()


@directive("hang-after")
async def hang_after(exchange: Exchange, text: str) -> None:
    await exchange.begin(int(text or 3))
    await exchange.forever()


@directive("hang-body")
async def hang_body(exchange: Exchange, text: str) -> None:
    head = f"HTTP/1.1 {text} x\r\nLocation: /v1/elsewhere\r\nContent-Length: 1000\r\n\r\n"
    exchange.write(head.encode() + b"half a sen")
    await exchange.forever()


@directive("sleep-headers")
async def sleep_headers(exchange: Exchange, text: str) -> None:
    seconds, _, rest = text.partition(" ")
    await asyncio.sleep(float(seconds))
    await exchange.obey(rest)


@directive("trickle")
async def trickle(exchange: Exchange, text: str) -> None:
    """Cuts anywhere: inside headers, chunk sizes, events and characters."""
    write, pieces = exchange.write, bytearray()
    exchange.write = pieces.extend  # type: ignore[method-assign]
    await exchange.answer(words_of(text or CHINESE))
    for start in range(0, len(pieces), 7):
        write(bytes(pieces[start : start + 7]))
        await asyncio.sleep(0.002)


@directive("reset")
async def reset(exchange: Exchange, text: str) -> None:
    exchange.reset()


@directive("reset-after")
async def reset_after(exchange: Exchange, text: str) -> None:
    await exchange.begin(int(text or 3))
    # A reset throws away what the other side has not read yet.
    await asyncio.sleep(0.1)
    exchange.reset()


@directive("half")
async def half(exchange: Exchange, text: str) -> None:
    await exchange.begin(int(text or 3))
    exchange.close_body()


@directive("cut")
async def cut(exchange: Exchange, text: str) -> None:
    await exchange.begin(int(text or 3))
    exchange.connection.transport.close()


@directive("html")
async def html(exchange: Exchange, text: str) -> None:
    exchange.respond(200, b"<!doctype html><html><body><h1>Welcome to nginx!</h1></body></html>", "text/html")


@directive("empty-choices")
async def empty_choices(exchange: Exchange, text: str) -> None:
    exchange.head()
    exchange.send(data({"model": MODEL, "choices": []}))
    exchange.send(DONE)
    exchange.close_body()


@directive("malformed")
async def malformed(exchange: Exchange, text: str) -> None:
    await exchange.begin(1)
    exchange.send(b'data: {"choices": [{"delta": \n\n')
    exchange.close_body()


@directive("error-in-stream")
async def error_in_stream(exchange: Exchange, text: str) -> None:
    await exchange.begin(2)
    exchange.send(data({"error": {"message": text or "The model ran out of memory", "code": 500}}))
    exchange.close_body()


@directive("endless")
async def endless(exchange: Exchange, text: str) -> None:
    exchange.head()
    payload = framed(event("word " * 200)) * 20
    while True:
        await exchange.connection.writable.wait()
        exchange.write(payload)
        await asyncio.sleep(0)


@directive("huge-line")
async def huge_line(exchange: Exchange, text: str) -> None:
    exchange.head()
    exchange.send(b'data: {"choices": [{"delta": {"content": "')
    while True:
        await exchange.connection.writable.wait()
        exchange.send(b"x" * 50_000)
        await asyncio.sleep(0)


@directive("split-utf8")
async def split_utf8(exchange: Exchange, text: str) -> None:
    payload = b"".join(event(character) for character in text or CHINESE)
    exchange.head()
    # Two bytes at a time, and the middle of an event now and then alone: every character of three bytes is cut.
    for start in range(0, len(payload), 2):
        exchange.send(payload[start : start + 2])
        if start % 200 == 0:
            await asyncio.sleep(0.001)
    await exchange.end(len(text or CHINESE))


@directive("noisy")
async def noisy(exchange: Exchange, text: str) -> None:
    exchange.head()
    exchange.send(b": PROCESSING\r\n\r\nevent: message\r\nid: 1\r\nretry: 10\r\n")
    exchange.send(data({"choices": [{"delta": {"role": "assistant"}}]}).replace(b"\n", b"\r\n"))
    exchange.send(data({"choices": [{"delta": {"content": None}}]}).replace(b"\n", b"\r\n"))
    for word in words_of(text):
        exchange.send(event(word).replace(b"data: ", b"data:").replace(b"\n", b"\r\n") + b":ping\r\n\r\n")
    exchange.send(data({"choices": [{"delta": None, "finish_reason": "stop"}]}).replace(b"\n", b"\r\n"))
    exchange.send(b"data: [DONE]")
    exchange.close_body()


@directive("finish-with-every-word")
async def finish_with_every_word(exchange: Exchange, text: str) -> None:
    exchange.head()
    for word in words_of(text):
        exchange.send(event(word, "stop"))
        await asyncio.sleep(0.2)
    await exchange.end(1)


@directive("plain")
async def plain(exchange: Exchange, text: str) -> None:
    exchange.whole(text or "You said nothing")


@directive("no-usage")
async def no_usage(exchange: Exchange, text: str) -> None:
    exchange.usage = False
    await exchange.obey(text)


@directive("no-done")
async def no_done(exchange: Exchange, text: str) -> None:
    exchange.done_line = False
    await exchange.obey(text)


@directive("linger")
async def linger(exchange: Exchange, text: str) -> None:
    exchange.linger = True
    await exchange.obey(text)


@directive("close")
async def close(exchange: Exchange, text: str) -> None:
    exchange.chunked = False
    await exchange.obey(text)


@directive("redirect")
async def redirect(exchange: Exchange, text: str) -> None:
    exchange.respond(302, b"", Location=text or "/v1/elsewhere")


@directive("picky")
async def picky(exchange: Exchange, text: str) -> None:
    if "stream_options" in exchange.body:
        return exchange.fail(400, "Unrecognized request argument supplied: stream_options")
    return await exchange.obey(text)


@directive("429")
async def too_many(exchange: Exchange, text: str) -> None:
    seconds, _, message = text.partition(" ")
    exchange.fail(429, message or "Rate limit reached", Retry_After=seconds or "1")


@directive("raw")
async def raw(exchange: Exchange, text: str) -> None:
    exchange.write(json.loads(text).encode("utf-8", "surrogateescape"))
    exchange.connection.transport.close()


class Connection(asyncio.Protocol):
    """One client connection; its requests are answered one after another."""

    def __init__(self, server: ModelServer) -> None:
        self.server = server
        self.buffer = bytearray()
        self.task: asyncio.Task[None] | None = None
        self.gone = False
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.server.connections.add(self)
        self.server.connections_seen += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        if self.task is not None:
            self.record["closed_early"] = True
            self.task.cancel()
        self.server.connections.discard(self)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, received: bytes) -> None:
        self.buffer += received
        if self.task is None:
            self.next_request()

    def next_request(self) -> None:
        head, found, rest = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        if len(rest) < length:
            return
        self.buffer = rest[length:]
        method, path, _ = first.split(" ", 2)
        body = json.loads(rest[:length]) if length else None
        record = {"method": method, "path": path, "headers": headers, "body": body, "at": time.time()}
        record |= {"words_sent": 0, "finished": False, "closed_early": False}
        self.record = record
        self.server.log.append(record)
        self.task = asyncio.ensure_future(self.handle(record))

    async def handle(self, record: Record) -> None:
        exchange = Exchange(self, record)
        try:
            await self.route(exchange, record["method"], record["path"])
            record["finished"] = True
        except asyncio.CancelledError:
            return
        except Exception as error:
            # The script is at fault, not the client: say so where the test can see it.
            exchange.json({"error": {"message": f"model_server: {error!r}"}}, 500)
        self.task = None
        if not self.gone:
            self.next_request()

    async def route(self, exchange: Exchange, method: str, path: str) -> None:
        if (method, path) == ("POST", "/v1/chat/completions"):
            await exchange.obey(exchange.question)
        elif (method, path) == ("GET", "/v1/models"):
            exchange.json({"object": "list", "data": [{"id": MODEL}, {"id": f"{MODEL}-small"}]})
        elif (method, path) == ("POST", "/v1/embeddings"):
            exchange.json(self.embeddings(exchange.body))
        elif (method, path) == ("GET", "/log"):
            exchange.json({"requests": self.server.log[:-1], "connections_open": self.server.connections_open})
        else:
            exchange.fail(404, f"There is no {method} {path} here")

    @staticmethod
    def embeddings(body: dict[str, Any]) -> dict[str, Any]:
        texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
        vectors = [{"object": "embedding", "index": n, "embedding": embedding(text)} for n, text in enumerate(texts)]
        usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
        return {"object": "list", "data": vectors, "model": body.get("model", MODEL), "usage": usage}


class ModelServer:
    """The server in a thread of its own; stopped and started again it keeps its port."""

    def __init__(
        self, port: int = 0, *, words: int = 0, words_per_second: float = 0, tls: ssl.SSLContext | None = None
    ) -> None:
        self.port, self.words, self.rate, self.tls = port, words, words_per_second, tls
        self.log: list[Record] = []
        self.connections: set[Connection] = set()
        self.connections_seen = 0
        self._thread: threading.Thread | None = None

    def __enter__(self) -> ModelServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def base_url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}/v1"

    @property
    def requests(self) -> list[Any]:
        """The bodies of the questions received so far."""
        return [record["body"] for record in self.log if record["path"] == "/v1/chat/completions"]

    @property
    def connections_open(self) -> int:
        return len(self.connections)

    def start(self) -> None:
        ready: threading.Event = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self.serve(ready.set)), daemon=True)
        self._thread.start()
        if not ready.wait(10):
            raise RuntimeError("The model server did not start")

    def stop(self) -> None:
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join(10)
            self._thread = None

    def wait_until_closed(self, timeout: float = 5.0) -> bool:
        """Whether no connection is open any more, within this time."""
        return self.wait_for(lambda: not self.connections, timeout)

    @staticmethod
    def wait_for(happened: Callable[[], object], timeout: float = 5.0) -> bool:
        deadline = time.monotonic() + timeout
        while not happened():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    def drop_idle(self) -> None:
        """Closes the connections that carry no request, as servers do after a while."""

        def drop() -> None:
            for connection in list(self.connections):
                if connection.task is None:
                    connection.transport.close()

        self._loop.call_soon_threadsafe(drop)

    async def serve(self, ready: Callable[[], object]) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        self.ticker = Ticker(self._loop)
        server = await self._loop.create_server(
            lambda: Connection(self), "127.0.0.1", self.port, backlog=4096, ssl=self.tls
        )
        self.port = server.sockets[0].getsockname()[1]
        ready()
        await self._stopped.wait()
        server.close()
        for connection in list(self.connections):
            connection.transport.abort()
        # One turn of the loop for each connection_lost.
        await asyncio.sleep(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--words", type=int, default=0, help="answers without a directive have this many words")
    parser.add_argument("--words-per-second", type=float, default=0, help="and come at this rate; 0: at once")
    chosen = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = ModelServer(chosen.port, words=chosen.words, words_per_second=chosen.words_per_second)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(server.serve(lambda: print(f"listening on {server.base_url}", flush=True)))


if __name__ == "__main__":
    main()
