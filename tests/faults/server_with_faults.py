"""The server with a knife in it: where KILL_AT says, its whole process group is killed at once, as by a power cut.

Started instead of app.py. The product knows nothing of this: its functions are wrapped here, in the worker, after the
fork, and then it is served as ever.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import server  # noqa: E402, found by the line above

Steps = dict[str, Callable[[], None]]


def die(*_: Any) -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)
    signal.pause()  # nothing more is done here, however late the signal comes


def wrap(owner: Any, name: str, *, before: Callable[..., None] | None = None, after: Any = None) -> None:
    found = vars(owner)[name]
    function = found.__func__ if isinstance(found, classmethod) else found

    @functools.wraps(function)
    def wrapped(*arguments: Any, **more: Any) -> Any:
        if before is not None:
            before(*arguments)
        result = function(*arguments, **more)
        if after is not None:
            after(*arguments)
        return result

    setattr(owner, name, classmethod(wrapped) if isinstance(found, classmethod) else wrapped)


def die_at_commit_in(owner: Any, name: str, number: int = 1) -> None:
    """Everything is written, and the commit is the next thing to happen: the first one, or another.

    Where there is no such commit, it is done when the function is. So the second one is the moment between the two of
    a step that should have been one, and the moment after the one of a step that is.
    """
    from sqlalchemy import Connection, Engine, event

    inside = threading.local()

    def enter(*_: Any) -> None:
        inside.commits = 0

    wrap(owner, name, before=enter, after=die)

    @event.listens_for(Engine, "commit")
    def before_commit(connection: Connection) -> None:
        if hasattr(inside, "commits") and connection.get_execution_options().get("writes"):
            inside.commits += 1
            if inside.commits == number:
                die()


def steps() -> Steps:
    from models import answering
    from models.run import Run
    from models.turn import Turn
    from models.worker import Worker

    def after_pieces(count: int) -> Callable[..., None]:
        return lambda run, *_: die() if len(run.pieces) >= count else None

    def after_saving(_worker: Worker, runs: list[Run], *_: Any) -> None:
        if any(run.saved for run in runs):
            die()

    return {
        "before the claim is written": lambda: wrap(Turn, "_insert", before=die),
        "after the claim is written": lambda: wrap(Turn, "_insert", after=die),
        "before the claim's commit": lambda: wrap(Worker, "start", after=die),
        "after the claim's commit": lambda: die_at_commit_in(Turn, "_claim", 2),
        "before the model is asked": lambda: wrap(answering, "listen", before=die),
        "after the first piece": lambda: wrap(Run, "append", after=after_pieces(1)),
        "after four pieces": lambda: wrap(Run, "append", after=after_pieces(4)),
        "before pieces are saved": lambda: die_at_commit_in(Worker, "_save"),
        "after pieces were saved": lambda: wrap(Worker, "_save", after=after_saving),
        "before the answer is stored": lambda: wrap(Turn, "complete", before=die),
        "before the answer's commit": lambda: die_at_commit_in(Turn, "complete"),
        "after the answer's commit": lambda: die_at_commit_in(Turn, "complete", 2),
        "before the failure is stored": lambda: wrap(Turn, "fail", before=die),
        "before the failure's commit": lambda: die_at_commit_in(Turn, "fail"),
        "after the failure's commit": lambda: die_at_commit_in(Turn, "fail", 2),
    }


def arm() -> None:
    steps()[os.environ["KILL_AT"]]()


if __name__ == "__main__":
    wrap(server.Server, "load", before=lambda _server: arm())
    server.main()
