"""The operator's door: flask commands."""

from __future__ import annotations

from pathlib import Path

import click
from flask import Flask

from models import schema, search
from models.doctor import examine


def set_up(app: Flask) -> None:
    for command in (doctor, backup, reindex):
        app.cli.add_command(command)


@click.command()
def doctor() -> None:
    """Check this installation and say what to do."""
    findings = examine()
    for finding in findings:
        click.echo(
            f"{'ok  ' if finding.good else 'LOOK'}  {finding.what}"
            + ("" if finding.good else f"\n      {finding.advice}")
        )
    if not all(finding.good for finding in findings):
        raise SystemExit(1)


@click.command()
@click.argument("target", type=click.Path(path_type=Path, dir_okay=False))
def backup(target: Path) -> None:
    """Copy the database to TARGET while Holdfast may be running."""
    if target.exists():
        raise click.ClickException(f"{target} is there already; nothing was written.")
    schema.backup(target)
    click.echo(f"Copied to {target}.")


@click.command()
def reindex() -> None:
    """Build the full-text index anew from the chats."""
    search.rebuild()
    total = search.pending_count()
    with click.progressbar(length=total, label="Indexing") as bar:
        while done := search.index_pending():
            bar.update(done)
