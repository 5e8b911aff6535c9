"""Keyset pages: a cursor names the last row seen, so that equal timestamps lose and repeat nothing."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from models.errors import InvalidCursor

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    rows: list[Row]
    next_cursor: str | None

    @property
    def has_more(self) -> bool:
        return self.next_cursor is not None


def encode_cursor(**keys: str | int) -> str:
    return base64.urlsafe_b64encode(json.dumps(keys).encode()).decode()


def decode_cursor(cursor: str, **types: type) -> list[Any]:
    """The values of exactly these keys, each of exactly its type; anything else was not made by us."""
    try:
        keys = json.loads(base64.b64decode(cursor.encode("ascii"), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError):
        raise InvalidCursor() from None
    if not isinstance(keys, dict) or {name: type(value) for name, value in keys.items()} != types:
        raise InvalidCursor()
    if any("\ud800" <= letter <= "\udfff" for value in keys.values() for letter in str(value)):
        raise InvalidCursor()  # half a character, which no database takes
    return [keys[name] for name in types]


def decode_keyset(cursor: str, time_key: str) -> dict[str, str]:
    """The two values by which lists go on: the time of the last row seen, and its id."""
    moment, last_id = decode_cursor(cursor, **{time_key: str, "id": str})
    return {"moment": moment, "last_id": last_id}
