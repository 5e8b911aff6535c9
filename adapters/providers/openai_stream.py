"""What the stream of a chat completion says, understood as it comes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from adapters.errors import AdapterError
from adapters.http import dig
from adapters.values import Delta, Usage

BROKE_OFF = "The model server broke off in the middle of the answer."
MALFORMED = "The model server sent something that is not a chat completion."


class Answer:
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
            raise AdapterError("backend", dig(event["error"]) or "The model server reported an error.")
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


def as_stream(pieces: Iterator[bytes]) -> Iterator[bytes]:
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
