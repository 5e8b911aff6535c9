"""Answers from any server that speaks the OpenAI chat-completions API."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from http.client import HTTPException, RemoteDisconnected, responses
from http.cookiejar import DefaultCookiePolicy
from itertools import chain
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from requests.utils import DEFAULT_CA_BUNDLE_PATH
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, ProtocolError

from adapters.errors import Aborted, AdapterError
from adapters.values import Cancel, Delta, Messages, Options, Usage

POOL_SIZE = 2048
READ_SIZE = 65_536
# Servers close a connection that has idled for some seconds (uvicorn: 5). A question that crosses such a close on its
# way may not be asked again, since it may have been heard: so only connections that rested for less are used again.
REUSE_WITHIN = 3.0
UNHEARD_WITHIN = 0.5
# What follows finish_reason (the usage, [DONE]) or the head of a refusal, and what follows [DONE] (the end of the body,
# which lets the connection be used again), comes at once or is not worth waiting for.
AFTER_FINISH, AFTER_DONE = 2.0, 0.1
BROKE_OFF = "The model server broke off in the middle of the answer."
MALFORMED = "The model server sent something that is not a chat completion."

_calling = threading.local()
_cutting = threading.Lock()


class _Call:
    """One request on its way: which connection carries it, and how another thread cuts it off."""

    line: _Line | None = None
    sock: Any = None
    on_used_line = False
    wants_new_line = False

    def __init__(self, cancel: Cancel) -> None:
        self.cancel = cancel

    def cut(self) -> None:
        with _cutting, suppress(OSError):
            # The connection may have gone back to the pool and carry somebody else's call by now.
            if self.line is not None and self.line.call is self:
                self.line.is_cut = True
                # SSLSocket.shutdown would take the TLS state away under the thread that reads.
                socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def end(self) -> None:
        self.cancel.ends_by(None)
        if self.line is not None:
            self.line.rested = time.monotonic()


class _Line(HTTPConnection):
    """A connection that knows whose call it carries."""

    call: _Call | None = None
    is_cut = False
    rested = 0.0

    def connect(self) -> None:
        self.is_cut, self.rested = False, 0.0
        super().connect()

    def request(self, *args: Any, **kwargs: Any) -> None:
        call: _Call = _calling.call
        with _cutting:
            self.call = call
        if self.sock is not None and (call.wants_new_line or self._is_stale()):
            self.close()
        call.on_used_line = self.sock is not None
        if self.sock is None:
            self.connect()
        call.line, call.sock = self, self.sock
        call.cancel.ends_by(call.cut)
        super().request(*args, **kwargs)

    def _is_stale(self) -> bool:
        has_rested = self.rested and (time.monotonic() - self.rested > REUSE_WITHIN or not self.is_connected)
        return bool(self.is_cut or has_rested)


class _TLSLine(_Line, HTTPSConnection):
    pass


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Line


class _TLSPool(HTTPSConnectionPool):
    ConnectionCls = _TLSLine


@cache
def _trusted() -> ssl.SSLContext:
    """Whom the system trusts and, since a small container has no such list, whom requests trusts."""
    context = ssl.create_default_context()
    context.load_verify_locations(DEFAULT_CA_BUNDLE_PATH)
    return context


class _Transport(HTTPAdapter):
    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _TLSPool}

    def build_connection_pool_key_attributes(self, *args: Any, **kwargs: Any) -> Any:
        where, how = super().build_connection_pool_key_attributes(*args, **kwargs)
        return where, how | ({"ssl_context": _trusted()} if where["scheme"] == "https" else {})

    def cert_verify(self, *args: Any, **kwargs: Any) -> None:
        """Left to the shared context: requests would read the list of roots anew for each connection, 25 ms a time."""


class _Session(requests.Session):
    def __init__(self) -> None:
        super().__init__()
        # A netrc entry would take the place of our key, and a proxy named in the environment would see it.
        self.trust_env = False
        self.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        self.headers.update({"Accept-Encoding": "identity", "User-Agent": "Holdfast"})
        for scheme in ("http://", "https://"):
            self.mount(scheme, _Transport(pool_connections=1, pool_maxsize=POOL_SIZE, pool_block=False))

    def get_redirect_target(self, resp: requests.Response) -> None:
        """None, always: even where none is followed, requests reads the whole body of a redirect to prepare for it."""


class _Answer:
    """What has been understood of an answer so far."""

    def __init__(self) -> None:
        self.spoke = self.finished = self.done = False
        self.fault: AdapterError | None = None
        self.usage: Any = None
        self._model: str | None = None
        self._tail = bytearray()
        self._half = ""

    def feed(self, data: bytes) -> Delta | None:
        """The words in these bytes, as one Delta; what is wrong with the rest is in `fault`, to raise after them."""
        if self._tail and b"\n" not in data:
            self._tail += data
            return None
        lines = (self._tail + data if self._tail else data).split(b"\n")
        self._tail = bytearray(lines.pop())
        words: list[str] = []
        try:
            for line in lines:
                if line[:5] == b"data:":
                    self._event(line[5:].strip(), words)
                elif line[:1] == b"{":
                    self._event(line, words)
        except AdapterError as fault:
            self.fault = fault
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            self.fault = AdapterError("backend", MALFORMED)
        return self._delta("".join(words))

    def _event(self, data: bytes | bytearray, words: list[str]) -> None:
        if not data or self.done:
            return
        if data == b"[DONE]":
            self.finished = self.done = True
            return
        event = json.loads(data.decode("utf-8", "replace"))
        if event.get("error"):
            raise AdapterError("backend", _dig(event["error"]) or "The model server reported an error.")
        if self._model is None:
            self._model = event.get("model")
        self.usage = event.get("usage") or self.usage
        if choices := event.get("choices"):
            choice = choices[0]
            if choice.get("finish_reason"):
                self.finished = True
            if content := (choice.get("delta") or choice.get("message") or {}).get("content"):
                words.append(_text(content))

    def _delta(self, text: str) -> Delta | None:
        if self._half or not text.isascii():
            text = self._whole(text)
        if not text:
            return None
        if self.spoke:
            return Delta(text)
        self.spoke = True
        return Delta(text, self._model[:200] if isinstance(self._model, str) else None)

    def _whole(self, text: str) -> str:
        """Servers that escape their JSON may send the two halves of an emoji in two events."""
        text, self._half = self._half + text, ""
        if "\ud800" <= text[-1:] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def last(self) -> Iterator[Delta]:
        """What is left to say when the body is over; an answer without an end, or without a word, is none."""
        if not self.finished:
            raise AdapterError("backend", BROKE_OFF if self.spoke else MALFORMED)
        if not self.spoke:
            raise AdapterError("backend", "The model server sent an empty answer.")
        if usage := _usage(self.usage):
            yield Delta(usage=usage)


class OpenAI:
    name = "openai"

    def __init__(
        self,
        base_url: str,
        api_key: str,
        model: str,
        *,
        connect_timeout: float = 5.0,
        read_timeout: float = 120.0,
        max_response_bytes: int = 16_000_000,
    ) -> None:
        self.model = model
        self._base_url, self._key = base_url.rstrip("/"), api_key.strip()
        self._timeouts = (connect_timeout, read_timeout)
        self._max_bytes = max_response_bytes
        self._asks_usage = True
        self._session = _Session()

    def stream(self, messages: Messages, options: Options) -> Iterator[Delta]:
        call = _Call(options.cancel)
        try:
            yield from self._deltas(messages, options, call)
        except Exception as error:
            raise Aborted if call.cancel.aborted else self._told(error) from None
        finally:
            call.end()

    def models(self) -> list[str]:
        """The names of the models that the server offers."""
        call = _Call(Cancel())
        try:
            with self._send(call, "GET", "/models") as response:
                if response.status_code >= 300:
                    raise _refusal(response, _detail(response, call))
                return _ids(b"".join(self._pieces(response, call)))
        except Exception as error:
            raise self._told(error) from None
        finally:
            call.end()

    def _deltas(self, messages: Messages, options: Options, call: _Call) -> Iterator[Delta]:
        answer = _Answer()
        with self._ask(messages, options, call) as response:
            pieces = self._pieces(response, call)
            kind = response.headers.get("Content-Type", "").lower()
            if "html" in kind:
                raise AdapterError("backend", "The model server sent a web page, not an answer. Is its address right?")
            if "application/json" in kind:
                pieces = _as_stream(pieces)
            try:
                for data in chain(pieces, [b"\n"]):
                    if delta := answer.feed(data):
                        yield delta
                    if answer.fault:
                        raise answer.fault
                    # Some servers say finish_reason with every word: only one without a word is the end. And a body
                    # that is over has given its connection back: that is no longer ours to change.
                    if (answer.done or (answer.finished and not delta)) and not response.raw.closed:
                        call.sock.settimeout(AFTER_DONE if answer.done else AFTER_FINISH)
                    if answer.done:
                        # Only a connection whose body was read to its end can be used again.
                        next(pieces, None)
                        break
            except (HTTPError, HTTPException, OSError) as error:
                if not answer.finished:
                    raise _broken(error) from None
        yield from answer.last()

    def _ask(self, messages: Messages, options: Options, call: _Call) -> requests.Response:
        body: dict[str, Any] = {"model": self.model, "messages": messages, "stream": True}
        body |= {"temperature": options.temperature} if options.temperature is not None else {}
        body |= {"max_tokens": options.max_tokens} if options.max_tokens is not None else {}
        body |= {"stream_options": {"include_usage": True}} if self._asks_usage else {}
        response = self._send(call, "POST", "/chat/completions", json=body)
        if response.status_code < 300:
            return response
        with response:
            detail = _detail(response, call)
        if "stream_options" in body and response.status_code in (400, 422) and b"stream_options" in detail:
            self._asks_usage = False
            return self._ask(messages, options, call)
        raise _refusal(response, detail)

    def _send(self, call: _Call, method: str, path: str, **body: Any) -> requests.Response:
        if call.cancel.aborted:
            raise Aborted
        if not (self._key.isascii() and self._key.isprintable()):
            raise AdapterError("connection", "The API key has characters that cannot be sent.", permanent=True)
        began = time.monotonic()
        try:
            response = self._send_once(call, method, path, **body)
        except requests.ConnectionError as error:
            # llama.cpp closes kept connections when it likes, without a word. Such a close, before it heard us, shows
            # on a used line, at once, orderly and without a byte: only then is the question put again (ADR 9).
            unheard = call.on_used_line and _hung_up(error) and time.monotonic() - began < UNHEARD_WITHIN
            if not unheard or call.cancel.aborted:
                raise
            call.wants_new_line = True
            response = self._send_once(call, method, path, **body)
        response.raw.decode_content = "Content-Encoding" in response.headers
        return response

    def _send_once(self, call: _Call, method: str, path: str, **body: Any) -> requests.Response:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        _calling.call = call
        try:
            return self._session.request(
                method,
                self._base_url + path,
                headers=headers,
                timeout=self._timeouts,
                stream=True,
                allow_redirects=False,
                **body,
            )
        finally:
            del _calling.call

    def _pieces(self, response: requests.Response, call: _Call) -> Iterator[bytes]:
        read, cancel, left = response.raw.read1, call.cancel, self._max_bytes
        while True:
            data = read(READ_SIZE)
            if cancel.aborted:
                raise Aborted
            if not data:
                return
            left -= len(data)
            if left < 0:
                raise AdapterError("backend", f"The answer is longer than {self._max_bytes} bytes; it was cut off.")
            yield data

    def _told(self, error: Exception) -> AdapterError:
        """The error in words for a person, without the key: a server may have sent it back to us."""
        fault = error if isinstance(error, AdapterError) else _fault(error)
        message = (fault.message.replace(self._key, "[key]") if self._key else fault.message)[:500]
        if fault.kind == "connection":
            message = f"{self._base_url.rpartition('//')[2].partition('/')[0].rpartition('@')[2]}: {message}"
        return AdapterError(fault.kind, message, permanent=fault.permanent)


def _hung_up(error: requests.ConnectionError) -> bool:
    """An orderly close without a byte; a reset is something else."""
    broken = error.args[0] if error.args else None
    return isinstance(broken, ProtocolError) and any(isinstance(part, RemoteDisconnected) for part in broken.args)


def _as_stream(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """A server that does not stream sends one object: one event, then."""
    yield b"data:" + b"".join(pieces).replace(b"\n", b" ") + b"\ndata:[DONE]\n"


def _text(content: Any) -> str:
    if not isinstance(content, str):
        raise AdapterError("backend", "The model server sent an answer that is not text.")
    return content


def _usage(told: Any) -> Usage | None:
    match told:
        case {"prompt_tokens": int(prompt), "completion_tokens": int(answer)} if {prompt >> 31, answer >> 31} == {0}:
            return Usage(prompt, answer)
    return None


def _ids(listed: bytes) -> list[str]:
    try:
        return [str(model["id"]) for model in json.loads(listed)["data"]]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise AdapterError("backend", "The model server sent something that is not a list of models.") from None


def _detail(response: requests.Response, call: _Call) -> bytes:
    """The start of what a server says about its refusal, or as much as can be read of it."""
    detail = bytearray()
    with suppress(HTTPError, HTTPException, OSError):
        call.sock.settimeout(AFTER_FINISH)
        while len(detail) < READ_SIZE and (data := response.raw.read1(READ_SIZE)):
            detail += data
    return bytes(detail)


def _refusal(response: requests.Response, detail: bytes) -> AdapterError:
    status = response.status_code
    plain = f"HTTP {status} {responses.get(status, '')}".strip()
    if status < 400:
        return AdapterError("backend", f"The model server redirects elsewhere ({plain}); redirects are not followed.")
    wait = _dig(response.headers.get("Retry-After", "")[:40])
    hint = f"Try again in {wait} seconds: " if wait.isdigit() else f"Try again after {wait}: "
    message = (hint if wait else "") + (_dig(detail) or plain)
    return AdapterError("backend", message, permanent=status in (400, 401, 403, 404))


def _dig(said: Any) -> str:
    """The sentence for people inside an error body; never a web page."""
    if isinstance(said, bytes):
        text = said.decode("utf-8", "replace")
        try:
            return _dig(json.loads(text))
        except (ValueError, RecursionError):
            return "" if text.lstrip().startswith("<") else _dig(text)
    if isinstance(said, str):
        return "".join(character for character in " ".join(said.split()) if character.isprintable())
    if isinstance(said, list):
        return _dig(said[0]) if said else ""
    if isinstance(said, dict):
        return next(filter(None, (_dig(said.get(key)) for key in ("error", "message", "detail", "msg"))), "")
    return ""


def _broken(error: Exception) -> AdapterError:
    fault = _fault(error)
    return fault if fault.kind == "timeout" else AdapterError("backend", BROKE_OFF)


def _fault(error: BaseException | None) -> AdapterError:
    """Wrapped errors say less than what they wrap: the first that is not a mere wrapper decides."""
    while error is not None:
        if isinstance(error, TimeoutError):
            return AdapterError("timeout", "The model server did not answer in time.")
        if isinstance(error, OSError) and not isinstance(error, requests.RequestException):
            detail = getattr(error, "verify_message", None) or error.strerror or str(error)
            return AdapterError("connection", detail)
        if isinstance(error, ValueError):
            return AdapterError("connection", "this address cannot be used", permanent=True)
        if isinstance(error, HTTPException):
            break
        error = error.__cause__ or error.__context__
    return AdapterError("backend", "The model server did not answer in HTTP.")
