"""Grams: how text is folded and cut for the search index, and how a hit in it is shown."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from html import escape
from itertools import accumulate
from operator import add

import regex
from markupsafe import Markup

SNIPPET_LENGTH = 120
BEFORE_HIT = 40
MOST_WINDOWS, MOST_TERMS, LONGEST_TERM = 12, 50, 1000
MOST_MARKED = 20

SPACE = re.compile(r"\s+")
WIDE = re.compile("[\uff01-\uff5e]")
# What FTS5's `ascii` tokenizer would drop: it stands in the index as a letter 256 places further on. A real letter
# from there may share that place; such a candidate is sent away by the literal check that follows every look-up.
MARKS = re.compile(r"[\x00-\x08\x0e-\x1b!-/:-@\[-`{-\x7f]")
# A few dozen letters repeat more than thousands of Chinese characters do: three of them still say too little.
LETTERS = re.compile("[^\\s\u2e80-\U0010ffff]{4,}")


def fold(text: str) -> str:
    """Without the difference of case and of width. Character by character: what is in a text stays in it, folded."""
    return WIDE.sub(lambda wide: chr(ord(wide[0]) - 0xFEE0), text.casefold())


def grams(text: str) -> set[str]:
    """Every 1, 2 and 3 characters that stand together in a text, and every 4 letters, folded."""
    text = _indexable(fold(text))
    found: set[str] = set()
    for run in text.split():
        pairs = list(map(add, run, run[1:]))
        found.update(run, pairs, map(add, pairs, run[2:]))
    for run in LETTERS.findall(text):
        found.update(_fours(run))
    return found


def windows(terms: Iterable[str]) -> list[str]:
    """Grams that a text with all these folded terms must have: the longest ones, thinned evenly where they are many."""
    telling = sorted(terms, key=len, reverse=True)[:MOST_TERMS]
    found = list(dict.fromkeys(gram for term in telling for gram in _windows(_indexable(term[:LONGEST_TERM]))))
    if len(found) > MOST_WINDOWS:
        found = [gram for gram in found if len(gram.encode()) > 3] or found
    return found[:: -(-len(found) // MOST_WINDOWS) or 1]


def snippet(text: str, terms: list[str]) -> Markup:
    """About 120 characters around the longest term, as HTML with every hit in a `mark`."""
    first, last = _place(text, max(terms, key=len))
    start = max(0, min(first - BEFORE_HIT, len(text) - SNIPPET_LENGTH))
    if start and (cut := regex.match(r"\X", text, pos=start)):
        start = min(cut.end(), first)
    end = min(len(text), start + SNIPPET_LENGTH)
    part = text[start:end]
    spans = _joined([(first - start, min(last, end) - start), *_marked(part, terms)])
    html, at = ["…" if start else ""], 0
    for begin, stop in spans:
        html += [_line(part[at:begin]), "<mark>", _line(part[begin:stop]), "</mark>"]
        at = stop
    html += [_line(part[at:]), "…" if end < len(text) else ""]
    return Markup("".join(html))  # noqa: S704 - all that comes from the text has been escaped


def _indexable(folded: str) -> str:
    return MARKS.sub(lambda mark: chr(ord(mark[0]) + 256), folded)


def _fours(run: str) -> Iterator[str]:
    return map(add, map(add, run, run[1:]), map(add, run[2:], run[3:]))


def _windows(term: str) -> list[str]:
    if len(term) < 3:
        return [term]
    fours = [four for run in LETTERS.findall(term) for four in _fours(run)]
    inside = {three for four in fours for three in (four[:3], four[1:])}
    threes = (term[at : at + 3] for at in range(len(term) - 2))
    return [*fours, *(three for three in threes if three not in inside)]


def _place(text: str, term: str) -> tuple[int, int]:
    """Where in a text the folded term stands first; a letter that unfolds into several counts as one place."""
    folded = fold(text)
    first = folded.find(term)
    return _unfolded(text, folded, [(first, first + len(term))])[0]


def _marked(part: str, terms: list[str]) -> list[tuple[int, int]]:
    wanted = "|".join(re.escape(term) for term in sorted(terms[:MOST_MARKED], key=len, reverse=True))
    folded = fold(part)
    return _unfolded(part, folded, [hit.span() for hit in re.finditer(wanted, folded)])


def _unfolded(text: str, folded: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    if len(folded) == len(text):
        return spans
    starts = list(accumulate((len(fold(letter)) for letter in text), initial=0))
    return [(bisect_right(starts, first) - 1, bisect_right(starts, last - 1)) for first, last in spans]


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return joined


def _line(text: str) -> str:
    return escape(SPACE.sub(" ", text))
