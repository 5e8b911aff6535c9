"""The optional limit: so many turns a minute for one client, counted in this process."""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from flask import current_app, request

from models.errors import TooBusy

View = TypeVar("View", bound=Callable[..., Any])


class Limiter:
    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._lock = threading.Lock()
        self._recent: dict[str, deque[float]] = {}

    def take(self, client: str) -> None:
        if not self._per_minute:
            return
        moment = time.monotonic()
        with self._lock:
            if len(self._recent) > 10_000:
                self._recent = {name: times for name, times in self._recent.items() if times[-1] > moment - 60}
            times = self._recent.setdefault(client, deque())
            while times and times[0] <= moment - 60:
                times.popleft()
            if len(times) >= self._per_minute:
                raise TooBusy(retry_after=max(1, round(times[0] + 60 - moment)))
            times.append(moment)


def limited(view: View) -> View:
    @functools.wraps(view)
    def call(**arguments: Any) -> Any:
        current_app.extensions["limiter"].take(request.remote_addr or "")
        return view(**arguments)

    return call  # type: ignore[return-value]
