"""History: what the model really received."""

from __future__ import annotations

import pytest

from models import tokens
from tests.api.conftest import Talker
from tests.api.talk import add_message, add_session, execute

DAY = "2026-01-01T00:00:{:02}.000Z"


def sent(talker):
    """The last prompt without its system part."""
    return [entry["content"] for entry in talker.prompts[-1] if entry["role"] != "system"]


def system(talker):
    assert talker.prompts[-1][0]["role"] == "system"
    assert [entry["role"] for entry in talker.prompts[-1]].count("system") == 1
    return talker.prompts[-1][0]["content"]


@pytest.fixture
def long_chat(talker):
    """A chat of thirty messages, ten tokens each."""
    chat = add_session(talker.app)
    for number in range(30):
        add_message(talker.app, chat, ("user", "assistant")[number % 2], f"m{number}", DAY.format(number), tokens=10)
    return chat


def test_the_system_prompt_comes_first_and_the_question_last(talker):
    chat = talker.new_chat()
    talker.talk(chat, "!say one", "!say two")
    assert system(talker)
    assert [(entry["role"], entry["content"]) for entry in talker.prompts[-1][1:]] == [
        ("user", "!say one"),
        ("assistant", "one"),
        ("user", "!say two"),
    ]


def test_the_system_prompt_is_the_operators_choice(make_app, model_server):
    app = make_app(llm_base_url=model_server.base_url, llm_model="m", system_prompt="Speak like a pirate.")
    talker = Talker(app.test_client(), model_server)
    talker.talk(talker.new_chat(), "!say arr")
    assert system(talker) == "Speak like a pirate."


def test_the_newest_twenty_oldest_first(talker, long_chat):
    talker.talk(long_chat, "!say next")
    assert sent(talker) == [*(f"m{number}" for number in range(11, 30)), "!say next"]


@pytest.mark.parametrize(("limit", "count"), [(1, 1), (2, 2), (7, 7), (31, 31), (1000, 31)])
def test_the_limit_of_a_request(talker, long_chat, limit, count):
    talker.ask(long_chat, "!say next", history_limit=limit)
    assert sent(talker) == [*(f"m{number}" for number in range(30)), "!say next"][-count:]


def test_the_limit_is_the_operators_choice(make_app, model_server, long_chat):
    app = make_app(llm_base_url=model_server.base_url, llm_model="m", history_limit=3)
    talker = Talker(app.test_client(), model_server)
    talker.talk(long_chat, "!say next")
    assert sent(talker) == ["m28", "m29", "!say next"]


def test_a_limit_of_nothing_still_asks_the_question(talker, long_chat):
    talker.ask(long_chat, "!say next", history_limit=0, max_history_tokens=0)
    assert sent(talker) == ["!say next"]


@pytest.mark.parametrize("fitting", [0, 1, 5, 12])
@pytest.mark.parametrize("spare", [0, 9])
def test_the_token_budget_includes_the_system_prompt_and_the_question(talker, long_chat, fitting, spare):
    question = talker.ask(long_chat, "!say measure", history_limit=1).json["user_message"]
    execute(talker.app, "DELETE FROM chat_messages WHERE created_at > ?", DAY.format(29))
    budget = tokens.estimate(system(talker)) + question["token_count"] + 10 * fitting + spare
    talker.ask(long_chat, "!say measure", max_history_tokens=budget)
    assert sent(talker) == [*(f"m{number}" for number in range(30 - fitting, 30)), "!say measure"]


def test_the_token_budget_by_default(talker):
    chat = add_session(talker.app)
    for number in range(10):
        add_message(talker.app, chat, "user", f"m{number}", DAY.format(number), tokens=1500)
    talker.talk(chat, "!say next")
    assert sent(talker) == ["m5", "m6", "m7", "m8", "m9", "!say next"]


def test_messages_that_nobody_counted_are_estimated(talker):
    chat = add_session(talker.app)
    for number in range(5):
        add_message(talker.app, chat, "user", f"{number} " + "word " * 3000, DAY.format(number))
    talker.talk(chat, "!say next")
    assert [text.partition(" ")[0] for text in sent(talker)] == ["3", "4", "!say"]


def test_the_history_has_no_holes(talker):
    """What does not fit ends it: a model must not read an answer without its question."""
    chat = add_session(talker.app)
    for number, size in enumerate((10, 10, 7990, 10)):
        add_message(talker.app, chat, "user", f"m{number}", DAY.format(number), tokens=size)
    talker.talk(chat, "!say next")
    assert sent(talker) == ["m3", "!say next"]


@pytest.mark.parametrize(
    "mark", [{"error": {"code": "LLM_ERROR", "message": "no"}}, {"isVirtual": True}, {"status": 1}], ids=str
)
def test_failed_virtual_and_inactive_messages_are_left_out(talker, mark):
    chat = add_session(talker.app)
    for number in range(30):
        details = mark if number % 3 == 1 else {"status": 0, "isVirtual": False}
        add_message(talker.app, chat, "user", f"m{number}", DAY.format(number), tokens=10, **details)
    talker.ask(chat, "!say next", history_limit=8)
    assert sent(talker) == ["m20", "m21", "m23", "m24", "m26", "m27", "m29", "!say next"]


def test_failed_turns_are_left_out(talker):
    chat = talker.new_chat()
    talker.talk(chat, "!say one")
    for fault in ("!500 no", "!half 2", "!reset"):
        talker.ask(chat, fault)
    talker.talk(chat, "!say two")
    assert sent(talker) == ["!say one", "one", "!say two"]


def test_other_chats_are_left_out(talker, long_chat):
    chat = talker.new_chat()
    talker.talk(chat, "!say mine")
    assert sent(talker) == ["!say mine"]


# The clock


CLOCKS = {
    "one that stands still": ["2026-05-01T12:00:00.000Z"] * 50,
    "one that runs backwards": [f"2026-05-01T12:00:{59 - n:02}.000Z" for n in range(50)],
    "one that jumps back a year": ["2026-05-01T12:00:00.000Z"] * 4 + ["2025-05-01T12:00:00.000Z"] * 46,
    "one that jumps to and fro": ["2026-05-01T12:00:00.000Z", "2024-01-01T00:00:00.000Z"] * 25,
}


@pytest.mark.parametrize("clock", CLOCKS.values(), ids=CLOCKS.keys())
def test_the_clock_does_not_reorder_a_chat(talker, monkeypatch, clock):
    ticks = iter(clock)
    monkeypatch.setattr("models.base.now", lambda: next(ticks, clock[-1]))
    chat = talker.new_chat()
    said = []
    for number in range(5):
        talker.talk(chat, f"!say answer {number}")
        said += [f"!say answer {number}", f"answer {number}"]
    assert [message["content"] for message in talker.messages(chat)] == said
    times = [message["created_at"] for message in talker.messages(chat)]
    assert times == sorted(set(times))
    assert sent(talker) == said[:-1]
    assert talker.row(chat)["last_message_preview"] == "answer 4"


def test_the_clock_does_not_move_a_chat_down_the_list(talker, monkeypatch):
    chat = talker.new_chat()
    before = talker.show(chat)["updated_at"]
    monkeypatch.setattr("models.base.now", lambda: "2020-01-01T00:00:00.000Z")
    talker.talk(chat, "!say hello")
    assert talker.show(chat)["updated_at"] > before
