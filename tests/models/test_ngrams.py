"""Folding, grams and snippets."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.ngrams import BEFORE_HIT, MOST_WINDOWS, SNIPPET_LENGTH, fold, grams, snippet, windows

ODD = "aAbBzZ09 \n\t\u3000\u00a0中文的重跑后，。！ＡｂＣ（）ßẞİſKﬁΣσς"
ODD += "'\"+-*_%C🙂👍🏽👨\u200d👩\u200d👧é\u0301\x00\x01\x1c\x7fÀĀĭ"
texts = st.text(st.sampled_from(ODD) | st.characters(exclude_categories=["Cs"]), max_size=60)


@given(texts, texts)
def test_folding_goes_letter_by_letter(one, other):
    assert fold(one + other) == fold(one) + fold(other)


def test_folding_forgets_case_and_width():
    assert fold("ＡＢｃ！ Straße ΣΑΣ") == "abc! strasse σασ"


@given(texts, st.data())
def test_the_grams_of_a_text_have_every_window_of_every_piece_of_it(text, data):
    start = data.draw(st.integers(0, len(text)))
    piece = text[start : data.draw(st.integers(start, len(text)))]
    assert set(windows(fold(piece).split())) <= grams(text)


@given(texts)
def test_grams_are_words_to_the_ascii_tokenizer(text):
    for gram in grams(text):
        assert 1 <= len(gram) <= 4
        assert all(letter.isalnum() if letter.isascii() else True for letter in gram)


def test_four_letters_stand_together_but_not_four_chinese_characters():
    assert {"abcd", f"bcd{chr(256 + ord('-'))}"} <= grams("abcd-")
    assert "中文索引" not in grams("中文索引")
    assert {"中", "中文", "中文索", "文索引"} <= grams("中文索引")


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        (["a"], ["a"]),
        (["中文"], ["中文"]),
        (["abc"], ["abc"]),
        (["abcde"], ["abcd", "bcde"]),
        (["中文索引"], ["中文索", "文索引"]),
        (["跑gen后"], ["跑ge", "gen", "en后"]),
        ([], []),
    ],
)
def test_windows_are_the_longest_grams(terms, expected):
    assert windows(terms) == expected


def test_windows_are_few_whatever_is_asked():
    many = windows(["".join(chr(97 + i % 26) for i in range(k, k + 40)) for k in range(100)] + ["的"])
    assert 0 < len(many) <= MOST_WINDOWS
    assert len(windows([chr(0x4E00 + i) for i in range(1000)])) <= MOST_WINDOWS
    assert len(windows(["x" * 100_000])) == 1


def test_a_snippet_marks_every_hit_and_escapes_the_rest():
    assert snippet('<b>Fish & "chips"</b>\n\n  fish', ["fish"]) == (
        "&lt;b&gt;<mark>Fish</mark> &amp; &quot;chips&quot;&lt;/b&gt; <mark>fish</mark>"
    )


@pytest.mark.parametrize(
    ("text", "term", "expected"),
    [
        ("今天重跑gen-itgc后再看", "GEN-itgc", "今天重跑<mark>gen-itgc</mark>后再看"),
        ("eine Straße hier", "strass", "eine <mark>Straß</mark>e hier"),
        ("İstanbul straße x", "x", "İstanbul straße <mark>x</mark>"),
        ("全角ＡＢＣ字", "abc", "全角<mark>ＡＢＣ</mark>字"),
        ("a<b", "<", "a<mark>&lt;</mark>b"),
        ("aaa", "aa", "<mark>aa</mark>a"),
    ],
)
def test_a_hit_is_marked_as_it_was_written(text, term, expected):
    assert snippet(text, fold(term).split()) == expected


def test_a_long_text_is_cut_around_its_hit():
    shown = snippet("far " * 300 + "needle" + " away" * 300, ["needle"])
    assert shown.startswith("…")
    assert shown.endswith("…")
    assert "<mark>needle</mark>" in shown
    assert len(shown) < SNIPPET_LENGTH + 20
    assert shown.index("<mark>") <= BEFORE_HIT + 1


def test_a_hit_longer_than_the_snippet_is_marked_as_far_as_it_is_shown():
    assert snippet("x" * 500, ["x" * 400]) == f"<mark>{'x' * SNIPPET_LENGTH}</mark>…"


def test_the_longest_term_chooses_the_place():
    assert "<mark>of</mark> the <mark>parliament</mark>" in snippet(
        "of " * 200 + "the parliament", ["of", "parliament"]
    )


@given(texts, texts, st.data())
def test_a_snippet_is_a_piece_of_the_text_with_its_term_marked(before, after, data):
    term = data.draw(texts.filter(lambda text: len(text.split()) == 1)).strip()
    text = before + term + after
    shown = snippet(text, fold(term).split())
    hits = re.findall("<mark>(.*?)</mark>", shown, re.DOTALL)
    assert any(fold(term)[:1] in fold(html.unescape(hit)) for hit in hits)
    assert not re.search("[<>\"']", re.sub("</?mark>", "", shown))
    plain = html.unescape(re.sub("</?mark>", "", shown)).strip("…")
    assert plain.strip() in re.sub(r"\s+", " ", text)
