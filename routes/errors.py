"""How a failure is said: one JSON shape for everything under /api, a page for people; never a traceback."""

from __future__ import annotations

from typing import Any

from flask import Flask, Response, current_app, jsonify, make_response, render_template, request
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from models.errors import DomainError, StorageError

_CODES = {
    400: "BAD_REQUEST",
    403: "FORBIDDEN",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    413: "PAYLOAD_TOO_LARGE",
    421: "UNKNOWN_HOST",
}


def set_up(app: Flask) -> None:
    app.register_error_handler(DomainError, _domain_error)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(DBAPIError, _storage_error)
    app.register_error_handler(PoolTimeout, _storage_error)
    app.register_error_handler(Exception, _unexpected)


def _domain_error(error: DomainError) -> Response:
    if error.status >= 500:
        current_app.logger.error("%s %s: %s (%s)", request.method, request.path, error.message, error.__cause__)
    response = _say(error.status, error.code, error.message, error.extra)
    if "retry_after" in error.extra:
        response.headers["Retry-After"] = str(error.extra["retry_after"])
    return response


def _http_error(error: HTTPException) -> Response:
    status = error.code or 500
    if status < 400:
        return make_response(error.get_response())
    response = _say(status, _CODES.get(status, "HTTP_ERROR"), error.description or error.name)
    if isinstance(error, MethodNotAllowed) and error.valid_methods:
        response.headers["Allow"] = ", ".join(error.valid_methods)
    return response


def _storage_error(error: Exception) -> Response:
    current_app.logger.error("%s %s: the database failed: %s", request.method, request.path, error)
    return _say(500, StorageError.code, StorageError.message)


def _unexpected(error: Exception) -> Response:
    current_app.logger.exception("%s %s failed in a way that nobody foresaw.", request.method, request.path)
    return _say(500, "INTERNAL_ERROR", "Something went wrong inside Holdfast; its log says what.")


def _say(status: int, code: str, message: str, extra: dict[str, Any] | None = None) -> Response:
    if request.path.startswith("/api/") or request.path == "/api":
        detail: dict[str, Any] = {"code": code, "message": message}
        if extra:
            detail["extra"] = extra
        return make_response(jsonify(detail=detail), status)
    return make_response(render_template("errors/show.html", status=status, message=message), status)
