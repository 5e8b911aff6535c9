"""Names and previews of chats: white space folded, cut between characters as a reader sees them."""

from __future__ import annotations

import regex

DEFAULT_TITLE = "New Chat"
PREVIEW_LENGTH = 50


def fold(text: str) -> str:
    return " ".join(text.split())


def cut(text: str, longest: int) -> str:
    """At most `longest` code points, never inside a grapheme: an emoji of seven code points stays whole or goes."""
    if len(text) <= longest:
        return text
    if _begins_anew(text[longest]):
        return text[:longest].rstrip()
    end = 0
    for grapheme in regex.finditer(r"\X", text[: longest + 64]):
        if grapheme.end() > longest:
            break
        end = grapheme.end()
    return text[: end or longest].rstrip()


def _begins_anew(character: str) -> bool:
    """A letter of the plain kind, Latin or Chinese, always starts a grapheme: no need to look at those before it."""
    return character.isascii() or "\u3400" <= character <= "\u9fff"


def title_from(message: str, longest: int) -> str:
    words = message.split(None, longest)[:longest]  # as many as can matter of a message of any length
    return cut(" ".join(words), longest)


def preview_of(text: str | None) -> str | None:
    return cut(fold(text), PREVIEW_LENGTH) or None if text else None
