"""/api/query…: kept for older clients; nothing is stored."""

from __future__ import annotations

from typing import Any

from flask import Blueprint

from adapters.values import Options
from models import question
from models.attachments import check_image
from models.base import now
from models.errors import InvalidImage, TooBusy
from models.question import Answer, ModelFailed
from routes.api.answers import ConversationOut, StatelessOut
from routes.api.bodies import ConversationRequest, MultimodalItem, MultimodalRequest, StatelessRequest
from routes.api.contract import EmptyQuery, InvalidMode, endpoint
from routes.limiter import limited

queries = Blueprint("queries", __name__, url_prefix="/api/query")

ASKING = (EmptyQuery, InvalidMode, ModelFailed, TooBusy)


@endpoint(queries, "POST", "", body=StatelessRequest, returns=StatelessOut, errors=ASKING)
@limited
def create(body: StatelessRequest) -> Any:
    """Ask once, without a chat."""
    return _answered(body, question.ask(body.query, [], body.mode, _options(body)))


@endpoint(queries, "POST", "/conversation", body=ConversationRequest, returns=ConversationOut, errors=ASKING)
@limited
def conversation(body: ConversationRequest) -> Any:
    """Ask with the history that the client keeps; it comes back with the two new messages at its end."""
    sent = [{"role": entry.role, "content": entry.content} for entry in body.history]
    asked_at = now()
    answer = question.ask(body.query, sent, body.mode, _options(body))
    added = [
        {"role": "user", "content": body.query, "timestamp": asked_at},
        {"role": "assistant", "content": answer.text, "timestamp": now()},
    ]
    history = [entry.model_dump(exclude_none=True) for entry in body.history]
    return {**_answered(body, answer), "history": history + added}


@endpoint(queries, "POST", "/multimodal", body=MultimodalRequest, returns=StatelessOut, errors=(*ASKING, InvalidImage))
@limited
def multimodal(body: MultimodalRequest) -> Any:
    """Ask about images (Base64), tables and equations."""
    texts = [body.query, *(_as_text(item) for item in body.multimodal_content if item.type != "image")]
    images = [_as_image(item) for item in body.multimodal_content if item.type == "image"]
    text = "\n\n".join(texts)
    content = [{"type": "text", "text": text}, *images] if images else text
    return _answered(body, question.ask(content, [], body.mode, _options(body)))


def _options(body: StatelessRequest) -> Options:
    return Options(body.temperature, body.max_tokens)


def _answered(body: StatelessRequest, answer: Answer) -> dict[str, Any]:
    return {"query": body.query, "response": answer.text, "mode": body.mode, "metadata": answer.details}


def _as_text(item: MultimodalItem) -> str:
    parts = [item.table_caption or item.equation_caption, item.table_data or item.latex or item.text]
    return "\n".join(part for part in parts if part)


def _as_image(item: MultimodalItem) -> dict[str, Any]:
    if not item.img_base64:
        raise InvalidImage("An image must come as img_base64; paths and addresses are never opened.")
    return {"type": "image_url", "image_url": {"url": check_image(item.img_base64, item.img_mime_type)}}
