"""Brings the database file to the tables that this program knows, with a copy made first."""

from __future__ import annotations

import fcntl
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from flask import current_app
from sqlalchemy import inspect, text

from config import ROOT, Config
from models.base import db, now, release, sqlite_module, transaction

MIGRATIONS = ROOT / "migrations"


class SchemaError(Exception):
    """The database must not be opened as it is; the message says what to do."""


def bring_up_to_date(settings: Config) -> None:
    """Runs at every start and by any number of processes at once: the first one migrates, the others wait."""
    with _alone(settings.database_file):
        marker = _marker(settings.database_file)
        if marker.exists():
            raise SchemaError(marker.read_text())
        current = _current_revision()
        if current == head():
            return
        if current is not None and current not in revisions():
            raise SchemaError(
                f"{settings.database_file} was written by a newer Holdfast (its tables are at {current}, this program "
                f"knows {head()}). Install that version or a later one; nothing was changed."
            )
        _migrate(settings.database_file, current, marker)


def revisions() -> list[str]:
    """Read from the file names: Alembic itself is imported only when there is something to migrate."""
    return sorted(file.name.partition("_")[0] for file in (MIGRATIONS / "versions").glob("[0-9]*_*.py"))


def head() -> str:
    return revisions()[-1]


def _current_revision() -> str | None:
    tables = set(inspect(db.engine).get_table_names())
    if "alembic_version" not in tables:
        return None
    revision = db.session.execute(text("SELECT version_num FROM alembic_version")).scalar()
    release()
    return revision


def _migrate(file: Path, current: str | None, marker: Path) -> None:
    if inspect(db.engine).get_table_names():
        copy = file.with_name(f"{file.name}.before-{head()}-{re.sub('[^0-9]', '', now())}")
        backup(copy)
        marker.write_text(
            f"Updating {file} from {current or 'an older program'} to {head()} was cut short. To be safe it is not "
            f"opened. Put the copy that was made first back in its place:\n\n    rm -f {file}-wal {file}-shm\n"
            f"    cp {copy} {file}\n    rm {marker}\n\nand start again.\n"
        )
    _upgrade()
    marker.unlink(missing_ok=True)


def _upgrade() -> None:
    from alembic import command
    from alembic.config import Config as AlembicConfig

    alembic = AlembicConfig()
    alembic.set_main_option("script_location", str(MIGRATIONS))
    with transaction() as session:
        alembic.attributes["connection"] = session.connection()
        command.upgrade(alembic, "head")
    current_app.logger.info("The database is at %s.", head())


def backup(copy: Path) -> None:
    """A consistent copy of the live database: by SQLite's backup, never by copying the file."""
    source = db.engine.raw_connection()
    try:
        with closing(sqlite_module.connect(str(copy))) as target:
            source.driver_connection.backup(target)  # type: ignore[union-attr]
    finally:
        source.close()


def _marker(file: Path) -> Path:
    return file.with_name(file.name + ".migrating")


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    with file.with_name(file.name + ".start").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
