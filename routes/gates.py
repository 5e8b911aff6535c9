"""What every request passes: the host it names, the page it comes from; and the headers every answer carries."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

from flask import Flask, Response, request
from werkzeug.exceptions import Forbidden, MisdirectedRequest

from config import Config

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)+")

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "X-Frame-Options": "DENY",
}


def set_up(app: Flask, settings: Config) -> None:
    names = settings.host_names

    @app.before_request
    def check_request() -> None:
        if not _host_is_ours(_host_part(request.host), names, settings.on_loopback):
            raise MisdirectedRequest("This host name is not known here. The operator can add it to TRUSTED_HOSTS.")
        if request.method not in SAFE_METHODS and not _from_our_pages():
            raise Forbidden("This request comes from another site and was refused.")

    @app.after_request
    def add_headers(response: Response) -> Response:
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        if request.endpoint != "static" or response.status_code >= 400:
            response.headers.setdefault("Cache-Control", "no-store")
        return response


def _host_part(host: str) -> str:
    return (urlsplit(f"//{host}").hostname or "").rstrip(".").lower()


def _host_is_ours(host: str, names: frozenset[str], only_loopback: bool) -> bool:
    """Against DNS rebinding, which needs a name: numbers cannot be rebound, so only foreign names are refused."""
    if host in names or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or not only_loopback


def _from_our_pages() -> bool:
    """Browsers say where a request comes from; programs send neither header and are no danger to a person's session."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site in {"same-origin", "none"}
    origin = request.headers.get("Origin")
    return origin is None or origin.lower().partition("://")[2] == request.host.lower()


class SubPath:
    """Puts the app under URL_PREFIX, or under what a proxy says in X-Forwarded-Prefix."""

    def __init__(self, wsgi: Callable[..., Iterable[bytes]], prefix: str) -> None:
        self._wsgi = wsgi
        self._prefix = prefix

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        forwarded = environ.get("HTTP_X_FORWARDED_PREFIX", "").rstrip("/")
        prefix = self._prefix or (forwarded if _PREFIX.fullmatch(forwarded) else "")
        if prefix:
            environ["SCRIPT_NAME"] = prefix
            path = environ.get("PATH_INFO", "")
            if path == prefix or path.startswith(prefix + "/"):
                environ["PATH_INFO"] = path[len(prefix) :] or "/"
        return self._wsgi(environ, start_response)
