"""One definition per endpoint: it validates the request, and the OpenAPI description is made from it."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from flask import Blueprint, request
from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError
from pydantic_core import ErrorDetails, from_json

from models.errors import DomainError

View = TypeVar("View", bound=Callable[..., Any])


class BadRequest(DomainError):
    code, status, message = "BAD_REQUEST", 400, "The body must be a JSON object."


class Invalid(DomainError):
    code, status, message = "VALIDATION_ERROR", 422, "Some fields are wrong."


class PayloadTooLarge(DomainError):
    code, status, message = "PAYLOAD_TOO_LARGE", 413, "The body is larger than this server takes."


# Field errors that have a code of their own in the contract.


class EmptyQuery(DomainError):
    code, status, message = "EMPTY_QUERY", 400, "The message is empty."


class MissingRequestId(DomainError):
    code, status, message = "MISSING_REQUEST_ID", 400, "request_id is missing: a UUID that the client makes."


class InvalidMode(DomainError):
    code, status, message = "INVALID_MODE", 400, "There is no such mode."


CODED = {error.code: error for error in (EmptyQuery, MissingRequestId, InvalidMode)}
MISSING = {"query": EmptyQuery, "request_id": MissingRequestId}


class Body(BaseModel):
    """A request body; it remembers what was received, for the hash by which a repeated request is known."""

    model_config = ConfigDict(extra="ignore")
    _received: dict[str, Any] = PrivateAttr(default_factory=dict)

    def payload_hash(self, **more: str) -> str:
        canonical = json.dumps({**self._received, **more}, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()


class Query(BaseModel):
    model_config = ConfigDict(extra="ignore")


@dataclass(frozen=True, slots=True)
class Endpoint:
    method: str
    path: str
    summary: str
    group: str
    body: type[Body] | None
    query: type[Query] | None
    returns: Any
    status: int
    errors: tuple[type[DomainError], ...]
    streams: bool
    also: tuple[int, ...]  # further statuses that come with the same shape


ENDPOINTS: list[Endpoint] = []


def endpoint(
    blueprint: Blueprint,
    method: str,
    path: str,
    *,
    returns: Any,
    body: type[Body] | None = None,
    query: type[Query] | None = None,
    status: int = 200,
    errors: tuple[type[DomainError], ...] = (),
    streams: bool = False,
    also: tuple[int, ...] = (),
) -> Callable[[View], View]:
    """Registers the view; it is called with the validated `body` and `query` beside its path parameters."""

    def register(view: View) -> View:
        @functools.wraps(view)
        def call(**arguments: Any) -> Any:
            if query is not None:
                arguments["query"] = _checked(query, request.args.to_dict())
            if body is not None:
                arguments["body"] = _read_body(body)
            return view(**arguments)

        blueprint.add_url_rule(path, view.__name__, call, methods=[method])
        summary = (view.__doc__ or view.__name__).strip()
        full = (blueprint.url_prefix or "") + path
        ENDPOINTS.append(
            Endpoint(method, full, summary, blueprint.name, body, query, returns, status, errors, streams, also)
        )
        return view

    return register


def _read_body(model: type[Body]) -> Body:
    data = request.get_data(cache=False)
    try:
        received = from_json(data, allow_inf_nan=False) if data.strip() else None
    except ValueError as error:
        raise BadRequest(f"The body is not JSON: {error}.") from None
    if received is None and not any(field.is_required() for field in model.model_fields.values()) and not data.strip():
        received = {}
    if not isinstance(received, dict):
        raise BadRequest()
    body = _checked(model, received)
    if not all(_is_exact(value) for value in values_in(received)):
        raise Invalid(errors=[{"field": "body", "reason": "must not contain numbers past 64 bits"}])
    body._received = received
    return body


def values_in(data: Any) -> Iterator[Any]:
    """Every key and value, however deep."""
    found = [data]
    while found:
        value = found.pop()
        yield value
        if isinstance(value, dict):
            found += [*value.keys(), *value.values()]
        elif isinstance(value, list):
            found += value


def _is_exact(value: Any) -> bool:
    """JSON may say 1e999, which Python reads as infinity and could only give back as something that is not JSON."""
    return math.isfinite(value) if isinstance(value, float) else not isinstance(value, int) or -(2**63) <= value < 2**63


Checked = TypeVar("Checked", bound=BaseModel)


def _checked(model: type[Checked], values: dict[str, Any]) -> Checked:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
    for problem in errors:
        if problem["type"] in CODED:
            raise CODED[problem["type"]](problem["msg"])
        if problem["type"] == "missing" and problem["loc"][-1] in MISSING:
            raise MISSING[str(problem["loc"][-1])]()
    raise Invalid(errors=[_field_error(problem) for problem in errors])


def _field_error(problem: ErrorDetails) -> dict[str, str]:
    return {"field": ".".join(map(str, problem["loc"])) or "body", "reason": problem["msg"]}
