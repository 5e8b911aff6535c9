"""Health, readiness, and the configuration as it is now."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, current_app

from models import search, setting
from models.base import check_writable, config, sqlite_module
from models.errors import StorageError
from routes.api.answers import ConfigOut, HealthOut, ReadyOut
from routes.api.contract import endpoint

status = Blueprint("status", __name__)


@endpoint(status, "GET", "/health", returns=HealthOut)
def health() -> Any:
    """Alive."""
    return {"status": "ok"}


@endpoint(status, "GET", "/ready", returns=ReadyOut, also=(503,))
def ready() -> Any:
    """Ready when a write would succeed now."""
    writable = _database_is_writable()
    provider = setting.provider()
    body = {
        "status": "ready" if writable else "unavailable",
        "database": {"writable": writable, "sqlite": sqlite_module.sqlite_version},
        "provider": {"name": provider.name, "model": provider.model},
        "index": {"waiting": search.pending_count() if writable else None},
    }
    return body, 200 if writable else 503


@endpoint(status, "GET", "/api/config/current", returns=ConfigOut)
def current() -> Any:
    """What is configured; secrets are masked."""
    settings = {entry["variable"]: entry["value"] for entry in config().described()}
    return {"settings": settings, "provider": setting.provider().name, "version": current_app.config["VERSION"]}


def _database_is_writable() -> bool:
    try:
        check_writable()
    except StorageError:
        return False
    return True
