"""create_app(): configuration → database → worker → doors → errors → headers; `python app.py` serves it."""

from __future__ import annotations

if __name__ == "__main__":
    # Before the imports below: the process that only watches over the workers needs none of them, nor their memory.
    import server

    server.main()

from contextlib import suppress

from flask import Flask

import cli
from config import Config
from models import base, schema, search
from models.errors import StorageError
from models.turn import Turn
from models.worker import Worker
from routes import api, docs, errors, gates, start, status
from routes.limiter import Limiter

VERSION = "0.1.0"


def create_app(settings: Config | None = None, *, serving: bool = False) -> Flask:
    """`serving`: this process answers requests for long, so it keeps leases alive and tidies up in the background."""
    settings = settings or Config.from_environment()
    app = Flask(__name__)
    app.config.update(
        HOLDFAST=settings,
        VERSION=VERSION,
        MAX_CONTENT_LENGTH=settings.max_body_mb * 1_000_000,
        MAX_FORM_MEMORY_SIZE=settings.max_body_mb * 1_000_000,
    )
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.json.ensure_ascii = False  # type: ignore[attr-defined]
    for folder in (settings.data_dir, settings.database_file.parent):
        folder.mkdir(parents=True, exist_ok=True)
    base.init_database(app, settings)
    app.extensions["limiter"] = Limiter(settings.rate_limit_per_minute)
    app.extensions["worker"] = worker = Worker(app, settings.data_dir / "run")
    with app.app_context():
        schema.bring_up_to_date(settings)
        with suppress(StorageError):  # locked just now: the beat will do it
            Turn.interrupt_all_abandoned()
    if serving:
        worker.now_and_then += [search.catch_up, Turn.interrupt_all_abandoned]
        worker.start_beating()

    for door in (start.start, status.status, docs.docs, *api.DOORS):
        app.register_blueprint(door)
    errors.set_up(app)
    gates.set_up(app, settings)
    cli.set_up(app)
    app.wsgi_app = gates.SubPath(app.wsgi_app, settings.url_prefix)  # type: ignore[method-assign]
    return app
