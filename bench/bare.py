"""The measure of all things here: a Flask app with one route, on the same server as ours."""

from __future__ import annotations

from typing import Any

from flask import Flask

import server
from config import Config


class Bare(server.Server):
    def load(self) -> Flask:
        app = Flask(__name__)

        @app.get("/")
        def answer() -> Any:
            return {"status": "ok"}

        return app


if __name__ == "__main__":
    Bare(Config.from_environment()).run()
