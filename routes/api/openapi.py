"""The OpenAPI description, made from the endpoints' own definitions."""

from __future__ import annotations

import functools
import re
from typing import Any

from flask import current_app
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from models.errors import DomainError, StorageError
from routes.api.answers import ErrorOut
from routes.api.contract import ENDPOINTS, BadRequest, Endpoint, Invalid, PayloadTooLarge

ABOUT = (
    "The chat API. Every error has one shape: detail.code, detail.message and, where it helps, detail.extra. "
    "Lists are paged by opaque cursors: pass next_cursor back as cursor while has_more is true."
)
REF = "#/components/schemas/{model}"


@functools.cache
def describe() -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(_braced(endpoint.path), {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": current_app.config["VERSION"], "description": ABOUT},
        "paths": paths,
        "components": {"schemas": _schemas()},
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": endpoint.summary.replace("`", ""),
        "tags": [endpoint.group],
        "operationId": f"{endpoint.method.lower()}{re.sub('[^a-z]+', '_', _braced(endpoint.path))}".rstrip("_"),
        "parameters": [*_path_parameters(endpoint), *_query_parameters(endpoint)],
        "responses": _responses(endpoint),
    }
    if endpoint.body is not None:
        schema = {"$ref": REF.format(model=endpoint.body.__name__)}
        required = any(field.is_required() for field in endpoint.body.model_fields.values())
        operation["requestBody"] = {"required": required, "content": {"application/json": {"schema": schema}}}
    return operation


def _path_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    names = re.findall(r"<(\w+)>", endpoint.path)
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _query_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    if endpoint.query is None:
        return []
    properties = endpoint.query.model_json_schema()["properties"]
    return [{"name": name, "in": "query", "required": False, "schema": schema} for name, schema in properties.items()]


def _responses(endpoint: Endpoint) -> dict[str, Any]:
    kind = "text/event-stream" if endpoint.streams else "application/json"
    schema = {"type": "string"} if endpoint.streams else {"$ref": REF.format(model=endpoint.returns.__name__)}
    said = {"description": "Done.", "content": {kind: {"schema": schema}}}
    responses: dict[str, Any] = {str(status): said for status in (endpoint.status, *endpoint.also)}
    for status, errors in sorted(_errors_by_status(endpoint).items()):
        responses[str(status)] = {
            "description": " ".join(f"{error.code}: {error.message}" for error in errors),
            "content": {"application/json": {"schema": {"$ref": REF.format(model=ErrorOut.__name__)}}},
        }
    return responses


def _errors_by_status(endpoint: Endpoint) -> dict[int, list[type[DomainError]]]:
    general: list[type[DomainError]] = [StorageError]
    general += [BadRequest, PayloadTooLarge, Invalid] if endpoint.body else [Invalid] if endpoint.query else []
    found: dict[int, list[type[DomainError]]] = {}
    for error in (*endpoint.errors, *general):
        found.setdefault(error.status, []).append(error)
    return found


def _schemas() -> dict[str, Any]:
    models: dict[str, type[BaseModel]] = {"ErrorOut": ErrorOut}
    for endpoint in ENDPOINTS:
        for model in (endpoint.body, endpoint.returns):
            if model is not None:
                models[model.__name__] = model
    inputs = [(model, "validation") for model in models.values()]
    _, schema = models_json_schema(inputs, ref_template=REF)  # type: ignore[arg-type]
    return schema["$defs"]


def _braced(path: str) -> str:
    return re.sub(r"<(\w+)>", r"{\1}", path)
