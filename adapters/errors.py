"""The one error that adapters raise: what went wrong outside, in words that a person can read."""

from __future__ import annotations

from typing import Literal

Kind = Literal["connection", "backend", "timeout"]


class AdapterError(Exception):
    """`kind` says which of the three sentences a page shows; `permanent` that trying again cannot help."""

    def __init__(self, kind: Kind, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.permanent = permanent


class Aborted(Exception):
    """The call was ended on purpose, from our side, through its `Cancel`."""
