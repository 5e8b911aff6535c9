"""/api/chat/search: full-text search over titles and messages."""

from __future__ import annotations

from typing import Any

from flask import Blueprint

from models import search
from models.errors import InvalidCursor
from routes.api.answers import SearchPage
from routes.api.bodies import SearchQuery
from routes.api.contract import endpoint
from routes.api.serializers import found_out, page_out

searches = Blueprint("searches", __name__, url_prefix="/api/chat/search")


@endpoint(searches, "GET", "", query=SearchQuery, returns=SearchPage, errors=(InvalidCursor,))
def index(query: SearchQuery) -> Any:
    """Find chats by what was said in them or by their title; in a snippet, HTML-escaped, the hit stands in <mark>."""
    page = search.search(query.q, query.limit, query.cursor)
    return page_out("sessions", page, found_out)
