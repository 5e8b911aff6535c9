"""Setting: which provider answers, as the operator configured it."""

from __future__ import annotations

from typing import cast

from flask import current_app

from adapters.providers import Provider, providers
from config import Config
from models.base import config


def provider() -> Provider:
    """One per process: a provider keeps its connections to the model server open between turns."""
    if "provider" not in current_app.extensions:
        current_app.extensions["provider"] = _make_provider(config())
    return cast(Provider, current_app.extensions["provider"])


def _make_provider(settings: Config) -> Provider:
    if not settings.llm_base_url:
        return cast(Provider, providers["builtin"]())
    made = providers["openai"](
        settings.llm_base_url,
        settings.llm_api_key,
        settings.llm_model,
        connect_timeout=settings.llm_connect_timeout,
        read_timeout=settings.llm_timeout,
        max_response_bytes=settings.llm_max_answer_mb * 1_000_000,
    )
    return cast(Provider, made)
