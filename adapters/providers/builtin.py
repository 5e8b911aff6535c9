"""The built-in reader: answers with no key, no network and no download, out of what the chat itself holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from adapters.errors import Aborted
from adapters.values import Delta, Messages, Options

MOST_QUOTES = 3


@dataclass(frozen=True, slots=True)
class Words:
    """What it says, in one language."""

    introduction: str
    found: str
    nothing: str
    empty: str
    count: str
    first: str
    last: str
    you: str
    me: str


ENGLISH = Words(
    introduction=(
        "I am Holdfast's built-in reader. I work without a model server: I cannot reason or write for you, but I can "
        "find what was said in this chat. Ask me for a word or a topic from it, for your first or last message, or how "
        "many messages there are.\n\nFor real conversations, connect a model server: set `LLM_BASE_URL` and "
        "`LLM_MODEL` (Ollama, llama.cpp, vLLM, LM Studio or any service that speaks the OpenAI API) and start again."
    ),
    found="From earlier in this chat:",
    nothing=(
        "I found nothing about that in this chat. I am the built-in reader and know only what was said here; connect a "
        "model server (`LLM_BASE_URL`, `LLM_MODEL`) to have questions answered by a model."
    ),
    empty="Nothing was said in this chat before your question.",
    count="Before your question this chat has {all} messages: {yours} from you and {mine} answers.",
    first="Your first message here was:",
    last="Your message before this one was:",
    you="You",
    me="Answer",
)
CHINESE = Words(
    introduction=(
        "我是 Holdfast 的内置阅读器，不需要模型服务器也能工作：我不会推理，也不能代写，但能找出这个会话里说过的内容。"
        "您可以问某个词或话题、问第一条或上一条消息，或者问这里有多少条消息。\n\n要真正对话，请连接模型服务器：设置 "
        "`LLM_BASE_URL` 和 `LLM_MODEL`（Ollama、llama.cpp、vLLM、LM Studio，或任何兼容 OpenAI 接口的服务），"
        "然后重新启动 Holdfast。"
    ),
    found="这个会话前面说过：",
    nothing=(
        "在这个会话里没有找到相关内容。我是内置阅读器，只知道这里说过的话；连接模型服务器（`LLM_BASE_URL`、`LLM_MODEL`）后，"
        "问题就能由模型来回答。"
    ),
    empty="在您的问题之前，这个会话还没有内容。",
    count="在您的问题之前，这个会话有 {all} 条消息：您发了 {yours} 条，回答 {mine} 条。",
    first="您在这里的第一条消息是：",
    last="您的上一条消息是：",
    you="您",
    me="回答",
)

_HAN = re.compile(r"[\u3400-\u9fff]")
_SENTENCE = re.compile(r"[^。！？!?\n]+?(?:[。！？!?]+|\.(?=\s|$)|\n|$)")
_WORD = re.compile(r"[a-z0-9][a-z0-9'+#._-]*", re.IGNORECASE)
_COUNT = re.compile(r"how many (messages|questions)|多少条?消息|几条消息", re.IGNORECASE)
_FIRST = re.compile(r"\bmy first (message|question)|第一(条消息|个问题)|最早的消息", re.IGNORECASE)
_LAST = re.compile(r"\bmy (last|previous) (message|question)|上一?(条消息|个问题)", re.IGNORECASE)
_STOP_WORDS = frozenset(
    "a about an and are as at be but by can chat could did do does for from had has have how i if in is it its me my "
    "of on or our please said say so tell that the their them there they this to was we were what when where which who "
    "why will with would you your".split()
)
_STOP_HAN = frozenset(
    "的了是在我你您他她它们这那有和与或吗呢吧啊什么怎样请问说过会话里个条就都也不要没一为对上下中关于"
)


class Builtin:
    name = "builtin"
    model = "builtin-reader"

    def models(self) -> list[str]:
        return [self.model]

    def stream(self, messages: Messages, options: Options) -> Iterator[Delta]:
        for piece in re.findall(r"\S+\s*|\s+", reply(messages)):
            if options.cancel.aborted:
                raise Aborted()
            yield Delta(piece, self.model)


def reply(messages: Messages) -> str:
    said = [(entry["role"], _text_of(entry["content"])) for entry in messages if entry["role"] != "system"]
    question, earlier = said[-1][1], said[:-1]
    words = CHINESE if _HAN.search(question) else ENGLISH
    yours = [text for role, text in earlier if role == "user"]
    if _COUNT.search(question):
        return words.count.format(all=len(earlier), yours=len(yours), mine=len(earlier) - len(yours))
    if _FIRST.search(question):
        return _quoted(words.first, yours[:1]) or words.empty
    if _LAST.search(question):
        return _quoted(words.last, yours[-1:]) or words.empty
    return _from_earlier(question, earlier, words) or (words.nothing if earlier else words.introduction)


def _from_earlier(question: str, earlier: list[tuple[str, str]], words: Words) -> str:
    """The sentences that share most with the question, in the order in which they were said."""
    wanted = _terms(question)
    scored = []
    for place, (role, text) in enumerate(earlier):
        for sentence in _SENTENCE.findall(text):
            shared = wanted & _terms(sentence)
            if shared and "built-in reader" not in text and "内置阅读器" not in text:
                who = words.you if role == "user" else words.me
                scored.append((sum(map(len, shared)), place, f"**{who}**: {sentence.strip()}"))
    best = sorted(scored, key=lambda entry: -entry[0])[:MOST_QUOTES]
    return _quoted(words.found, list(dict.fromkeys(text for _, _, text in sorted(best, key=lambda entry: entry[1]))))


def _quoted(lead: str, quotes: list[str]) -> str:
    blocks = ["> " + quote.strip().replace("\n", "\n> ") for quote in quotes]
    return "\n\n".join([lead, *blocks]) if blocks else ""


def _terms(text: str) -> set[str]:
    latin = {word.lower().rstrip(".'-") for word in _WORD.findall(text)} - _STOP_WORDS
    return latin | set(_HAN.findall(text)) - _STOP_HAN


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(part["text"] for part in parts if part.get("type") == "text")
