"""Titles: a chat that nobody has named takes its first message as its name."""

from __future__ import annotations

import pytest
import regex

from tests.api.conftest import Talker
from tests.api.talk import SESSIONS, add_session

FAMILY = "👨‍👩‍👧‍👦"  # seven code points, one character


def title_after(client, *queries, chat=None, **new):
    chat = chat or client.new_chat(**new)
    client.talk(chat, *queries)
    title = client.show(chat)["title"]
    assert client.row(chat)["title"] == title
    return title


@pytest.mark.parametrize(
    ("message", "title"),
    [
        ("What is the plan?", "What is the plan?"),
        ("  two\n\nlines\tand  more ", "two lines and more"),
        ("a\u3000b\u00a0c\u2028d", "a b c d"),
        ("你好，世界", "你好，世界"),
        ("x" * 100, "x" * 100),
        ("x" * 101, "x" * 100),
        ("y" * 200_000, "y" * 100),
        ("word " * 50, ("word " * 20).strip()),
        ("<b>bold</b>", "<b>bold</b>"),
        (" " * 5000 + "far right", "far right"),
        ("left" + " " * 5000 + "right", "left right"),
        ("\n".join("ab"), "a b"),
        ("New Chat", "New Chat"),
    ],
)
def test_the_first_message_names_the_chat(reader, message, title):
    assert title_after(reader, message) == title


@pytest.mark.parametrize("start", range(93, 102))
def test_a_title_is_never_cut_inside_a_character_as_people_see_it(reader, start):
    message = "x" * start + FAMILY + "tail"
    expected = message[:100] if start >= 100 else ("x" * start + (FAMILY if start + 7 <= 100 else ""))
    assert title_after(reader, message) == expected


@pytest.mark.parametrize("character", [FAMILY, "e\u0301", "🇩🇪", "👍🏽", "क्षि", "각", "\u1112\u1161\u11ab", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "1️⃣"])
def test_titles_made_of_long_characters(reader, character):
    message = character * 120
    title = title_after(reader, message)
    assert message.startswith(title)
    assert 100 - len(character) < len(title) <= 100
    assert regex.findall(r"\X", title) == regex.findall(r"\X", message)[: len(regex.findall(r"\X", title))]


def test_only_the_first_message_names_the_chat(reader):
    assert title_after(reader, "first", "second") == "first"


def test_the_longest_title_is_the_operators_choice(make_app):
    client = Talker(make_app(session_title_max_len=10).test_client())
    assert title_after(client, "a title of more than ten") == "a title of"


@pytest.mark.parametrize("title", ["Mine", "New Chat"])
def test_a_title_that_a_person_gave_is_kept(reader, title):
    assert title_after(reader, "hello", title=title) == title


@pytest.mark.parametrize("title", ["Mine", "New Chat"])
def test_a_new_name_is_kept_too(reader, title):
    chat = reader.new_chat()
    reader.patch(f"{SESSIONS}/{chat}", {"title": title})
    assert title_after(reader, "hello", chat=chat) == title


def test_a_name_given_later_is_kept(reader):
    chat = reader.new_chat()
    reader.talk(chat, "hello")
    reader.patch(f"{SESSIONS}/{chat}", {"title": "Better"})
    assert title_after(reader, "again", chat=chat) == "Better"


def test_metadata_alone_gives_no_name(reader):
    chat = reader.new_chat(metadata={"a": 1})
    reader.patch(f"{SESSIONS}/{chat}", {"metadata": {"b": 2}})
    assert title_after(reader, "hello", chat=chat) == "hello"


@pytest.mark.parametrize(("title", "after"), [("New Chat", "hello"), ("Imported", "Imported")])
def test_chats_that_another_program_wrote(reader, title, after):
    assert title_after(reader, "hello", chat=add_session(reader.app, title)) == after


@pytest.mark.parametrize("fault", ["!500 no", "!half 2", "!reset"])
def test_a_first_message_that_failed_does_not_name_the_chat(talker, fault):
    chat = talker.new_chat()
    talker.ask(chat, fault)
    assert talker.show(chat)["title"] == "New Chat"
    assert title_after(talker, "!say it worked", chat=chat) == "!say it worked"


def test_a_stopped_first_message_names_the_chat(talker):
    chat = talker.new_chat()
    stream = talker.stream(chat, "!hang-after 2")
    turn = stream.next("start").data["turn_id"]
    stream.next("delta")
    talker.stop(turn)
    assert talker.show(chat)["title"] == "!hang-after 2"


def test_an_edited_first_message_does_not_rename_the_chat(reader):
    chat = reader.new_chat()
    reader.talk(chat, "first words")
    question, answer = reader.messages(chat)
    reader.patch(f"{SESSIONS}/{chat}/messages/{question['id']}", {"content": "other words"})
    reader.retry(chat, answer["id"])
    assert reader.show(chat)["title"] == "first words"
