"""Everything that exists in several kinds lives here; nothing here knows Flask or the database."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any


class Registry:
    """Names of one kind of plug-in, each a dotted path that is imported when it is first asked for."""

    def __init__(self, kind: str, paths: dict[str, str]) -> None:
        self.kind = kind
        self._paths = paths

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __getitem__(self, name: str) -> Any:
        if name not in self._paths:
            known = ", ".join(self._paths)
            raise LookupError(f"There is no {self.kind} named {name!r}; there are: {known}")
        module, _, attribute = self._paths[name].partition(":")
        return getattr(import_module(module), attribute)
