"""The production server: gunicorn, one process with a thread for every open stream. docs/adr/0004 has the figures."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

import gevent
from gunicorn.app.base import BaseApplication

from config import Config, ConfigError

if TYPE_CHECKING:
    from flask import Flask


class Server(BaseApplication):
    def __init__(self, settings: Config) -> None:
        self.settings = settings
        super().__init__()

    def load_config(self) -> None:
        settings = self.settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        options = {
            "bind": f"{host}:{settings.port}",
            "worker_class": "gevent",
            "workers": settings.workers,
            "worker_connections": settings.max_connections,
            "backlog": 2048,
            "keepalive": 30,
            "graceful_timeout": 5,
            "loglevel": "warning" if settings.log_level == "INFO" else settings.log_level.lower(),
            "post_worker_init": announce,
            "proc_name": "holdfast",
        }
        for name, value in options.items():
            self.cfg.set(name, value)

    def load(self) -> Flask:
        # Here we are in the worker, after the fork: no connection is ever carried over one.
        from sqlalchemy.exc import DBAPIError

        from app import create_app
        from models.base import Aside
        from models.errors import StorageError
        from models.schema import SchemaError

        Aside.run = gevent.get_hub().threadpool.apply
        try:
            return create_app(self.settings, serving=True)
        except SchemaError as error:
            reason = str(error)
        except (StorageError, OSError, DBAPIError) as error:
            cause = error.__cause__ or error
            reason = (
                f"Holdfast cannot use {self.settings.database_file}: {getattr(cause, 'orig', None) or cause}.\n"
                "Check that the file is a Holdfast database, and that it and its folder belong to the user who runs "
                "Holdfast. Nothing was changed."
            )
        print(reason, file=sys.stderr, flush=True)
        sys.exit(4)  # gunicorn's word for "do not try again"


def announce(worker: Any) -> None:
    host, port = worker.sockets[0].getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    print(f"Holdfast is serving on http://{host}:{port}", flush=True)


def main() -> None:
    try:
        settings = Config.from_environment()
    except ConfigError as error:
        sys.exit(str(error))
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    Server(settings).run()
