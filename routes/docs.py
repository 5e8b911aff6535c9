"""/openapi.json and /docs: the API described by the definitions that validate it."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, render_template

from routes.api.openapi import describe

docs = Blueprint("docs", __name__)


@docs.get("/openapi.json")
def openapi() -> Any:
    return describe()


@docs.get("/docs")
def show() -> str:
    return render_template("docs/show.html", api=describe())
