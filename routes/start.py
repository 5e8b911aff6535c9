"""The start page."""

from __future__ import annotations

from flask import Blueprint, render_template

from models import setting
from models.chat import Chat

start = Blueprint("start", __name__)


@start.get("/")
def show() -> str:
    return render_template("start/show.html", provider=setting.provider(), page=Chat.page(10))
