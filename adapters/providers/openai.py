"""Answers from any server that speaks the OpenAI chat-completions API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

import requests

from adapters.errors import AdapterError
from adapters.http import BREAKS, Call, Server
from adapters.providers.openai_stream import BROKE_OFF, Answer, as_stream
from adapters.values import Cancel, Delta, Messages, Options

# What follows finish_reason (the usage, [DONE]), and what follows [DONE] (the end of the body, which lets the
# connection be used again), comes at once or is not worth waiting for.
AFTER_FINISH, AFTER_DONE = 2.0, 0.1


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
        self._asks_usage = True
        self._server = Server(
            base_url,
            api_key,
            called="The model server",
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            max_bytes=max_response_bytes,
        )

    def stream(self, messages: Messages, options: Options) -> Iterator[Delta]:
        with self._server.call(options.cancel) as call:
            yield from self._deltas(messages, options, call)

    def models(self) -> list[str]:
        """The names of the models that the server offers."""
        with self._server.call(Cancel()) as call:
            return _ids(self._server.read(call, "GET", "/models"))

    def _deltas(self, messages: Messages, options: Options, call: Call) -> Iterator[Delta]:
        answer = Answer()
        with self._ask(messages, options, call) as response:
            pieces = self._server.pieces(response, call)
            kind = response.headers.get("Content-Type", "").lower()
            if "html" in kind:
                raise AdapterError("backend", "The model server sent a web page, not an answer. Is its address right?")
            if "application/json" in kind:
                pieces = as_stream(pieces)
            try:
                for data in chain(pieces, [b"\n"]):
                    if delta := answer.feed(data):
                        yield delta
                    if answer.fault:
                        raise answer.fault
                    # Some servers say finish_reason with every word: only one without a word is the end.
                    if answer.done or (answer.finished and not delta):
                        call.hurry(response, AFTER_DONE if answer.done else AFTER_FINISH)
                    if answer.done:
                        # Only a connection whose body was read to its end can be used again.
                        next(pieces, None)
                        break
            except BREAKS as error:
                if not answer.finished:
                    raise self._broken(error) from None
        yield from answer.last()

    def _ask(self, messages: Messages, options: Options, call: Call) -> requests.Response:
        body: dict[str, Any] = {"model": self.model, "messages": messages, "stream": True}
        body |= {"temperature": options.temperature} if options.temperature is not None else {}
        body |= {"max_tokens": options.max_tokens} if options.max_tokens is not None else {}
        body |= {"stream_options": {"include_usage": True}} if self._asks_usage else {}
        response = self._server.send(call, "POST", "/chat/completions", json=body)
        if response.status_code < 300:
            return response
        with response:
            detail = self._server.detail(response, call)
        if "stream_options" in body and response.status_code in (400, 422) and b"stream_options" in detail:
            self._asks_usage = False
            return self._ask(messages, options, call)
        raise self._server.refusal(response, detail)

    def _broken(self, error: Exception) -> AdapterError:
        fault = self._server.fault(error)
        return fault if fault.kind == "timeout" else AdapterError("backend", BROKE_OFF)


def _ids(listed: bytes) -> list[str]:
    try:
        return [str(model["id"]) for model in json.loads(listed)["data"]]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise AdapterError("backend", "The model server sent something that is not a list of models.") from None
