"""What can go wrong in the domain, each with the code and status that the doors show for it."""

from __future__ import annotations

from typing import Any


class DomainError(Exception):
    code = "INTERNAL_ERROR"
    status = 500
    message = "Something went wrong."

    def __init__(self, message: str | None = None, **extra: Any) -> None:
        super().__init__(message or self.message)
        self.message = message or self.message
        self.extra = extra


class StorageError(DomainError):
    """The database refused. `busy` tells a lock, which passes, from a fault, which may not."""

    code = "STORAGE_ERROR"
    message = "The database could not be used. Nothing was saved; please try again."

    def __init__(self, message: str | None = None, *, busy: bool = False) -> None:
        super().__init__(message)
        self.busy = busy


class ChatNotFound(DomainError):
    code, status, message = "SESSION_NOT_FOUND", 404, "There is no such chat, or it was deleted."


class MessageNotFound(DomainError):
    code, status, message = "MESSAGE_NOT_FOUND", 404, "There is no such message in this chat."


class TurnNotFound(DomainError):
    code, status, message = "TURN_NOT_FOUND", 404, "There is no such turn."


class InvalidCursor(DomainError):
    code, status, message = "INVALID_CURSOR", 400, "The cursor is not one that this list gave out."


class InvalidImage(DomainError):
    code, status, message = "MULTIMODAL_INVALID", 400, "The image cannot be used."


class IdempotencyConflict(DomainError):
    code, status = "IDEMPOTENCY_CONFLICT", 409
    message = "This request_id has been used already, for another request or one that is still running."


class TurnInProgress(DomainError):
    code, status, message = "TURN_IN_PROGRESS", 409, "This chat is still answering. Wait for it, or stop it."


class NotLatestMessage(DomainError):
    code, status, message = "NOT_LATEST_MESSAGE", 409, "Only the newest message of its kind in a chat can be changed."


class TooBusy(DomainError):
    code, status, message = "RATE_LIMITED", 429, "Too many requests at once. Please try again shortly."


class InvalidValue(DomainError):
    """A value that passed the shape check and still cannot be: named like a field error."""

    code, status, message = "VALIDATION_ERROR", 422, "A field is wrong."

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(errors=[{"field": name, "reason": reason}])
