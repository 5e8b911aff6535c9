"""Doctor: looks an installation over and says what to do."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import NamedTuple

from sqlalchemy import text

from adapters.errors import AdapterError
from models import schema, search, setting
from models.base import check_writable, config, db, sqlite_module
from models.errors import StorageError

SAFE_SQLITE = (3, 51, 3)
LOW_SPACE = 500_000_000


class Finding(NamedTuple):
    good: bool
    what: str
    advice: str = ""


def examine() -> list[Finding]:
    return [_sqlite(), *_database(), _space(), _index(), *_provider()]


def _sqlite() -> Finding:
    version = sqlite_module.sqlite_version
    return Finding(
        sqlite_module.sqlite_version_info >= SAFE_SQLITE,
        f"SQLite {version} (by {sqlite_module.__name__})",
        "Before 3.51.3 two writers can damage a WAL database. Holdfast lets one write at a time, so it is safe beside "
        "itself, but let no other program write to this file; or install pysqlite3.",
    )


def _database() -> Iterator[Finding]:
    file = config().database_file
    try:
        check_writable()
        yield Finding(True, f"The database {file} can be written")
    except StorageError as error:
        yield Finding(
            False, f"The database {file} cannot be written: {error.__cause__}", "Check its owner and the disk."
        )
    sound = db.session.execute(text("PRAGMA quick_check(1)")).scalar()
    yield Finding(
        sound == "ok", f"Its file is sound: {sound}", "Restore a backup, or recover it with sqlite3's .recover."
    )
    yield Finding(True, f"Its tables are at {schema.head()}")


def _space() -> Finding:
    folder = config().data_dir
    free = shutil.disk_usage(folder).free
    return Finding(free > LOW_SPACE, f"{free // 1_000_000:,} MB free for {folder}", "Make room on this disk.")


def _index() -> Finding:
    waiting = search.pending_count()
    return Finding(True, f"{waiting:,} texts wait to be indexed for search")


def _provider() -> Iterator[Finding]:
    provider = setting.provider()
    if provider.name == "builtin":
        yield Finding(True, "No model server is configured: the built-in reader answers")
        return
    try:
        names = provider.models()
        advice = f"It offers: {', '.join(names[:10])}. Set LLM_MODEL to one of them."
        yield Finding(provider.model in names, f"The model server answers, for model {provider.model}", advice)
    except AdapterError as error:
        yield Finding(
            False, f"The model server at {config().llm_base_url}: {error.message}", "Start it, or set LLM_BASE_URL."
        )
