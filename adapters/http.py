"""The way to other servers: connections that are kept, calls that can be cut off, faults in words for people."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from http.client import HTTPException, RemoteDisconnected, responses
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from requests.utils import DEFAULT_CA_BUNDLE_PATH
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, ProtocolError

from adapters.errors import Aborted, AdapterError
from adapters.values import Cancel

POOL_SIZE = 2048
READ_SIZE = 65_536
# Servers close a connection that has idled for some seconds (uvicorn: 5). A question that crosses such a close on its
# way may not be asked again, since it may have been heard: so only connections that rested for less are used again.
REUSE_WITHIN = 3.0
UNHEARD_WITHIN = 0.5
# What follows the head of a refusal comes at once or is not worth waiting for.
AFTER_REFUSAL = 2.0
# What reading a body may raise.
BREAKS = (HTTPError, HTTPException, OSError)

_calling = threading.local()
_cutting = threading.Lock()


class Call:
    """One request on its way: which connection carries it, and how another thread cuts it off."""

    line: Line | None = None
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

    def hurry(self, response: requests.Response, seconds: float) -> None:
        """From here on, what does not come within this time is not worth waiting for."""
        # A body that is over has given its connection back: that is no longer ours to change.
        if not response.raw.closed:
            self.sock.settimeout(seconds)

    def end(self) -> None:
        self.cancel.ends_by(None)
        if self.line is not None:
            self.line.rested = time.monotonic()


class Line(HTTPConnection):
    """A connection that knows whose call it carries."""

    call: Call | None = None
    is_cut = False
    rested = 0.0

    def connect(self) -> None:
        self.is_cut, self.rested = False, 0.0
        super().connect()

    def request(self, *args: Any, **kwargs: Any) -> None:
        call: Call = _calling.call
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


class TLSLine(Line, HTTPSConnection):
    pass


class Pool(HTTPConnectionPool):
    ConnectionCls = Line


class TLSPool(HTTPSConnectionPool):
    ConnectionCls = TLSLine


@cache
def trusted() -> ssl.SSLContext:
    """Whom the system trusts and, since a small container has no such list, whom requests trusts."""
    context = ssl.create_default_context()
    context.load_verify_locations(DEFAULT_CA_BUNDLE_PATH)
    return context


class Transport(HTTPAdapter):
    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": Pool, "https": TLSPool}

    def build_connection_pool_key_attributes(self, *args: Any, **kwargs: Any) -> Any:
        where, how = super().build_connection_pool_key_attributes(*args, **kwargs)
        return where, how | ({"ssl_context": trusted()} if where["scheme"] == "https" else {})

    def cert_verify(self, *args: Any, **kwargs: Any) -> None:
        """Left to the shared context: requests would read the list of roots anew for each connection, 25 ms a time."""


class Session(requests.Session):
    def __init__(self) -> None:
        super().__init__()
        # A netrc entry would take the place of our key, and a proxy named in the environment would see it.
        self.trust_env = False
        self.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        self.headers.update({"Accept-Encoding": "identity", "User-Agent": "Holdfast"})
        for scheme in ("http://", "https://"):
            self.mount(scheme, Transport(pool_connections=1, pool_maxsize=POOL_SIZE, pool_block=False))

    def get_redirect_target(self, resp: requests.Response) -> None:
        """None, always: even where none is followed, requests reads the whole body of a redirect to prepare for it."""


class Server:
    """Another server: where it is, the key that it wants, and the connections that are kept to it."""

    def __init__(
        self, base_url: str, key: str, *, called: str, connect_timeout: float, read_timeout: float, max_bytes: int
    ) -> None:
        self._base_url, self._key = base_url.rstrip("/"), key.strip()
        self._called = called
        self._timeouts = (connect_timeout, read_timeout)
        self._max_bytes = max_bytes
        self._session = Session()

    @contextmanager
    def call(self, cancel: Cancel) -> Iterator[Call]:
        """Around everything that one call does: whatever goes wrong in here is told in words for a person."""
        call = Call(cancel)
        try:
            yield call
        except Exception as error:
            raise Aborted if cancel.aborted else self._told(error) from None
        finally:
            call.end()

    def read(self, call: Call, method: str, path: str, **body: Any) -> bytes:
        """A whole answer, for whoever has no use for its pieces."""
        with self.send(call, method, path, **body) as response:
            if response.status_code >= 300:
                raise self.refusal(response, self.detail(response, call))
            return b"".join(self.pieces(response, call))

    def send(self, call: Call, method: str, path: str, **body: Any) -> requests.Response:
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

    def _send_once(self, call: Call, method: str, path: str, **body: Any) -> requests.Response:
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

    def pieces(self, response: requests.Response, call: Call) -> Iterator[bytes]:
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

    def detail(self, response: requests.Response, call: Call) -> bytes:
        """The start of what a server says about its refusal, or as much as can be read of it."""
        detail = bytearray()
        with suppress(*BREAKS):
            call.hurry(response, AFTER_REFUSAL)
            while len(detail) < READ_SIZE and (data := response.raw.read1(READ_SIZE)):
                detail += data
        return bytes(detail)

    def refusal(self, response: requests.Response, detail: bytes) -> AdapterError:
        status = response.status_code
        plain = f"HTTP {status} {responses.get(status, '')}".strip()
        if status < 400:
            return AdapterError("backend", f"{self._called} redirects elsewhere ({plain}); redirects are not followed.")
        wait = dig(response.headers.get("Retry-After", "")[:40])
        hint = f"Try again in {wait} seconds: " if wait.isdigit() else f"Try again after {wait}: "
        message = (hint if wait else "") + (dig(detail) or plain)
        return AdapterError("backend", message, permanent=status in (400, 401, 403, 404))

    def fault(self, error: BaseException | None) -> AdapterError:
        """Wrapped errors say less than what they wrap: the first that is not a mere wrapper decides."""
        while error is not None:
            if isinstance(error, TimeoutError):
                return AdapterError("timeout", f"{self._called} did not answer in time.")
            if isinstance(error, OSError) and not isinstance(error, requests.RequestException):
                detail = getattr(error, "verify_message", None) or error.strerror or str(error)
                return AdapterError("connection", detail)
            if isinstance(error, ValueError):
                return AdapterError("connection", "this address cannot be used", permanent=True)
            if isinstance(error, HTTPException):
                break
            error = error.__cause__ or error.__context__
        return AdapterError("backend", f"{self._called} did not answer in HTTP.")

    def _told(self, error: Exception) -> AdapterError:
        """The error in words for a person, without the key: a server may have sent it back to us."""
        fault = error if isinstance(error, AdapterError) else self.fault(error)
        message = (fault.message.replace(self._key, "[key]") if self._key else fault.message)[:500]
        if fault.kind == "connection":
            message = f"{self._base_url.rpartition('//')[2].partition('/')[0].rpartition('@')[2]}: {message}"
        return AdapterError(fault.kind, message, permanent=fault.permanent)


def _hung_up(error: requests.ConnectionError) -> bool:
    """An orderly close without a byte; a reset is something else."""
    broken = error.args[0] if error.args else None
    return isinstance(broken, ProtocolError) and any(isinstance(part, RemoteDisconnected) for part in broken.args)


def dig(said: Any) -> str:
    """The sentence for people inside an error body; never a web page."""
    if isinstance(said, bytes):
        text = said.decode("utf-8", "replace")
        try:
            return dig(json.loads(text))
        except (ValueError, RecursionError):
            return "" if text.lstrip().startswith("<") else dig(text)
    if isinstance(said, str):
        return "".join(character for character in " ".join(said.split()) if character.isprintable())
    if isinstance(said, list):
        return dig(said[0]) if said else ""
    if isinstance(said, dict):
        return next(filter(None, (dig(said.get(key)) for key in ("error", "message", "detail", "msg"))), "")
    return ""
