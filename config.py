"""Every environment variable, read once, typed; a value that cannot be right stops the start and says why."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dotenv import dotenv_values

ROOT = Path(__file__).resolve().parent


class ConfigError(Exception):
    """The configuration cannot work; the message says which variable and what to do."""


def _number(kind: type, text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"must be a {'whole ' if kind is int else ''}number") from None


def _integer(lowest: int, highest: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = _number(int, text)
        if not lowest <= value <= highest:
            raise ValueError(f"must be from {lowest} to {highest}")
        return value

    return read


def _seconds(text: str) -> float:
    value = _number(float, text)
    if not 0 < value <= 86_400:
        raise ValueError("must be more than 0 and at most 86400 seconds")
    return value


def _flag(text: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in known:
        raise ValueError("must be 1 or 0")
    return known[text.lower()]


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip().lower() for name in text.split(",") if name.strip())
    for name in names:
        if not re.fullmatch(r"[\w.-]+", name):
            raise ValueError(f"{name!r} must be a host name alone, without http:// and without a port")
    return names


def _prefix(text: str) -> str:
    prefix = "/" + text.strip("/")
    if not re.fullmatch(r"/|(/[A-Za-z0-9._~-]+)+", prefix):
        raise ValueError("must be a path such as /holdfast")
    return "" if prefix == "/" else prefix


def _path(text: str) -> Path:
    """Absolute: the database would take a relative one from another folder than everything else does."""
    return Path(text).expanduser().absolute()


def _one_of(*known: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.upper() not in known:
            raise ValueError(f"must be one of {', '.join(known)}")
        return text.upper()

    return read


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise ValueError("must start with http:// or https://")
    parts = urlsplit(text)
    if not parts.hostname or parts.port == 0 or re.search(r"\s", text):
        raise ValueError("must name a server, such as http://127.0.0.1:11434/v1")
    if "@" in parts.netloc:
        raise ValueError("must not carry a password, since it is shown in the settings; there is a key for that")
    return text.rstrip("/")


def _setting(default: Any, read: Callable[[str], Any] = str, *, secret: bool = False, about: str) -> Any:
    return field(default=default, metadata={"read": read, "secret": secret, "about": about})


@dataclass(frozen=True)
class Config:
    """Field `history_limit` is the variable `HISTORY_LIMIT`, and so on; docs/self-hosting.md lists them all."""

    host: str = _setting("127.0.0.1", about="address to listen on; another than loopback needs ALLOW_ANYONE=1")
    port: int = _setting(8000, _integer(0, 65_535), about="port to listen on")
    allow_anyone: bool = _setting(False, _flag, about="1: serve on another address than loopback without a login")
    trusted_hosts: tuple[str, ...] = _setting((), _names, about="further host names that browsers may use, with commas")
    url_prefix: str = _setting("", _prefix, about="sub-path that the app stands under, such as /holdfast")
    workers: int = _setting(1, _integer(1, 64), about="server processes")
    max_connections: int = _setting(4000, _integer(10, 100_000), about="open connections per server process")
    log_level: str = _setting(
        "INFO", _one_of("DEBUG", "INFO", "WARNING", "ERROR"), about="DEBUG, INFO, WARNING or ERROR"
    )

    data_dir: Path = _setting(ROOT / "data", _path, about="database, uploads, conversations, secrets")
    chat_db_path: Path | None = _setting(None, _path, about="the SQLite file; chat.db in DATA_DIR where it is not set")
    busy_timeout_ms: int = _setting(30_000, _integer(0, 600_000), about="how long a write waits for the database")
    sqlite_synchronous: str = _setting(
        "FULL", _one_of("NORMAL", "FULL", "EXTRA"), about="FULL: on disk before it is acknowledged; or NORMAL"
    )

    history_limit: int = _setting(20, _integer(0, 1000), about="newest messages taken for the prompt")
    max_history_tokens: int = _setting(8000, _integer(0, 10_000_000), about="token budget of history and system prompt")
    sessions_default_limit: int = _setting(20, _integer(1, 100), about="page size of the list of chats")
    messages_default_limit: int = _setting(50, _integer(1, 200), about="page size of the messages of a chat")
    session_title_max_len: int = _setting(100, _integer(1, 1000), about="longest title of a chat")
    max_query_chars: int = _setting(200_000, _integer(1, 10_000_000), about="longest message a person may send")
    max_body_mb: int = _setting(20, _integer(1, 1000), about="largest request body under /api/chat and /api/query")
    max_image_mb: int = _setting(10, _integer(1, 1000), about="largest image sent with a message")

    llm_base_url: str = _setting("", _url, about="OpenAI-compatible server, such as http://127.0.0.1:11434/v1")
    llm_api_key: str = _setting("", secret=True, about="its key, where it needs one")
    llm_model: str = _setting("", about="the model's name there")
    llm_connect_timeout: float = _setting(5.0, _seconds, about="seconds to reach the model server")
    llm_timeout: float = _setting(120.0, _seconds, about="seconds without a word from the model server")
    llm_total_timeout: float = _setting(1800.0, _seconds, about="seconds that one answer may take in all")
    llm_max_answer_mb: int = _setting(16, _integer(1, 1000), about="largest answer taken from the model server")
    system_prompt: str = _setting("", about="what the model is told first; the built-in text where it is not set")

    turn_lease_seconds: float = _setting(60.0, _seconds, about="how long a turn of a silent process stays running")
    max_running_turns: int = _setting(2000, _integer(1, 100_000), about="answers being written at once, per process")
    rate_limit_per_minute: int = _setting(0, _integer(0, 1_000_000), about="turns per minute and client; 0: no limit")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Config:
        if environment is None:
            environment = {name: text or "" for name, text in dotenv_values(ROOT / ".env").items()} | os.environ
        values = {}
        for setting in fields(cls):
            text = environment.get(setting.name.upper(), "").strip()
            if text:
                values[setting.name] = cls._read(setting.name.upper(), text, setting.metadata["read"])
        config = cls(**values)
        config.check()
        return config

    @staticmethod
    def _read(variable: str, text: str, read: Callable[[str], Any]) -> Any:
        try:
            return read(text)
        except (ValueError, RuntimeError) as error:
            raise ConfigError(f"{variable} is wrong: {error}.") from error

    def check(self) -> None:
        if self.llm_base_url and not self.llm_model:
            raise ConfigError("LLM_BASE_URL is set, but LLM_MODEL is not: say which model that server shall use.")
        if not self.on_loopback and not self.allow_anyone:
            raise ConfigError(
                f"HOST={self.host} would let everyone on the network read and write every chat. Holdfast has no logins "
                "yet: keep HOST=127.0.0.1 and put a proxy with a login before it, or set ALLOW_ANYONE=1 if it is meant."
            )

    @property
    def on_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def host_names(self) -> frozenset[str]:
        """The names under which a browser may reach us; an address in numbers is judged in routes/gates.py."""
        own = set() if self.on_loopback else {self.host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}
        return frozenset({"localhost", *own, *self.trusted_hosts})

    @property
    def database_file(self) -> Path:
        return self.chat_db_path or self.data_dir / "chat.db"

    def described(self) -> list[dict[str, Any]]:
        """Every setting with its variable, its value as a person may see it, and what it is for."""
        return [
            {
                "variable": setting.name.upper(),
                "value": self._shown(setting.name, setting.metadata["secret"]),
                "about": setting.metadata["about"],
            }
            for setting in fields(self)
        ]

    def _shown(self, name: str, secret: bool) -> Any:
        value = getattr(self, name)
        if secret:
            return "********" if value else ""
        if isinstance(value, str):
            return re.sub(r"(?<=://)[^/]*@", "********@", value)  # an address may carry a password
        return str(value) if isinstance(value, Path) else value
