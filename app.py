"""create_app(): configuration → database → worker → doors → errors → headers; `python app.py` serves it."""

from __future__ import annotations

import logging
import sys
from typing import Any

from flask import Flask

import cli
from config import Config, ConfigError
from models import base, schema, search
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
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    base.init_database(app, settings)
    app.extensions["limiter"] = Limiter(settings.rate_limit_per_minute)
    app.extensions["worker"] = worker = Worker(app, settings.data_dir / "run")
    with app.app_context():
        schema.bring_up_to_date(settings)
        Turn.interrupt_all_abandoned()
    if serving:
        worker.each_beat += [search.index_pending, Turn.interrupt_all_abandoned]
        worker.start_beating()

    for door in (start.start, status.status, docs.docs, *api.DOORS):
        app.register_blueprint(door)
    errors.set_up(app)
    gates.set_up(app, settings)
    cli.set_up(app)
    app.wsgi_app = gates.SubPath(app.wsgi_app, settings.url_prefix)  # type: ignore[method-assign]
    return app


def serve(settings: Config) -> None:
    """A production server: one process, a thread for every open stream. docs/adr/0004 has the figures."""
    from gunicorn.app.base import BaseApplication

    class Server(BaseApplication):  # type: ignore[misc]
        def load_config(self) -> None:
            options = {
                "bind": f"[{settings.host}]:{settings.port}" if ":" in settings.host else f"{settings.host}:{settings.port}",
                "worker_class": "gthread",
                "workers": settings.workers,
                "threads": settings.threads,
                "worker_connections": settings.threads + 1000,
                "backlog": 2048,
                "keepalive": 30,
                "graceful_timeout": 10,
                "loglevel": settings.log_level.lower(),
                "post_worker_init": _announce,
                "proc_name": "holdfast",
            }
            for name, value in options.items():
                self.cfg.set(name, value)

        def load(self) -> Flask:
            # In the worker, after the fork: no connection is ever carried over one.
            try:
                return create_app(settings, serving=True)
            except schema.SchemaError as error:
                print(error, file=sys.stderr, flush=True)
                sys.exit(4)  # gunicorn's word for "do not try again"

    Server().run()


def _announce(worker: Any) -> None:
    host, port = worker.sockets[0].getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    print(f"Holdfast is serving on http://{host}:{port}", flush=True)


if __name__ == "__main__":
    try:
        chosen = Config.from_environment()
    except ConfigError as error:
        sys.exit(str(error))
    logging.basicConfig(level=chosen.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    serve(chosen)
