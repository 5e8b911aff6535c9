"""Prompt (plain): the system prompt, the history within its limits, and the question, as a provider is sent them."""

from __future__ import annotations

from dataclasses import dataclass

from adapters.values import Messages
from models import attachments, tokens
from models.base import config
from models.message import Message, MessageRow

DEFAULT_SYSTEM_PROMPT = (
    "You are the assistant in Holdfast, a chat that people use at work. Answer in the language of the question, "
    "plainly and to the point. Say so when you do not know something."
)


def system_prompt() -> str:
    return config().system_prompt or DEFAULT_SYSTEM_PROMPT


@dataclass(frozen=True, slots=True)
class Prompt:
    messages: Messages

    @classmethod
    def for_question(
        cls, chat_id: str, question_id: str | None, limit: int | None = None, budget: int | None = None
    ) -> Prompt:
        limit = config().history_limit if limit is None else limit
        budget = config().max_history_tokens if budget is None else budget
        system = system_prompt()
        history = _newest_that_fit(chat_id, question_id, max(limit, 1), budget - tokens.estimate(system))
        return cls([{"role": "system", "content": system}, *map(_as_sent, history)])


def _newest_that_fit(chat_id: str, question_id: str | None, limit: int, budget: int) -> list[MessageRow]:
    """The question itself always goes, whatever it costs; before it, the newest ones that fit, oldest first."""
    taken: list[MessageRow] = []
    for message in Message.backwards(chat_id):
        if not taken:
            if message.id == question_id:
                taken.append(message)
                budget -= _cost(message)
            continue
        if len(taken) >= limit:
            break
        if message.goes_into_prompts:
            budget -= _cost(message)
            if budget < 0:
                break
            taken.append(message)
    return taken[::-1]


def _cost(message: MessageRow) -> int:
    return tokens.estimate(message.content) if message.token_count is None else message.token_count


def _as_sent(message: MessageRow) -> dict[str, object]:
    path = message.details.get("img_path")
    image = attachments.as_data_url(path) if isinstance(path, str) else None
    if image is None:
        return {"role": message.role, "content": message.content}
    parts = [{"type": "text", "text": message.content}, {"type": "image_url", "image_url": {"url": image}}]
    return {"role": message.role, "content": parts}
