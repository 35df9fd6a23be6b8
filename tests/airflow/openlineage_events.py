"""OpenLineage events for tests: a local HTTP sink, and the spec as the official client package has it.

The package `openlineage-python` generates a class for each object of the spec (`openlineage.client.generated`). Here
those classes become JSON schemas again, with all fields required that have no default and no others allowed, so that an
event that a server has received is checked field by field. Facets are found by the definition that their `_schemaURL`
names. Facets of runs and jobs come from Airflow's provider: apart from errors they need what every facet has.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import threading
import types
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import attr
import jsonschema

Json = dict[str, Any]
_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_URI = {"type": "string", "pattern": "^[a-z]+://.+"}
_EVENT = {
    "type": "object",
    "required": ["eventTime", "eventType", "run", "job", "producer", "schemaURL"],
    "properties": {
        "eventTime": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"},
        "eventType": {"enum": ["START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"]},
        "producer": _URI,
        "schemaURL": _URI,
        "run": {
            "type": "object",
            "required": ["runId"],
            "properties": {"runId": {"type": "string", "pattern": "^[0-9a-f-]{36}$"}, "facets": {"type": "object"}},
        },
        "job": {
            "type": "object",
            "required": ["namespace", "name"],
            "properties": {"namespace": {"type": "string"}, "name": {"type": "string"}, "facets": {"type": "object"}},
        },
        "inputs": {"type": "array", "items": {"$ref": "#/$defs/dataset"}},
        "outputs": {"type": "array", "items": {"$ref": "#/$defs/dataset"}},
    },
    "$defs": {
        "dataset": {
            "type": "object",
            "required": ["namespace", "name"],
            "properties": {
                "namespace": {"type": "string", "minLength": 1},
                "name": {"type": "string", "minLength": 1},
                "facets": {"type": "object"},
                "inputFacets": {"type": "object"},
                "outputFacets": {"type": "object"},
            },
            "additionalProperties": False,
        }
    },
}
_BASE = {"_producer": _URI, "_schemaURL": _URI}
_FACET = {"type": "object", "required": list(_BASE), "properties": _BASE}


def check_event(event: Json) -> list[str]:
    """Raise `jsonschema.ValidationError` unless the event is as the spec says; the names of the facets checked."""
    jsonschema.validate(event, _EVENT)
    datasets = [*event.get("inputs", []), *event.get("outputs", [])]
    checked = []
    for holder in (event["run"], event["job"], *datasets):
        for kind in ("facets", "inputFacets", "outputFacets"):
            for name, facet in (holder.get(kind) or {}).items():
                jsonschema.validate(facet, _FACET)
                definition = _definitions().get(facet["_schemaURL"])
                if definition is not None and (holder in datasets or name == "errorMessage"):
                    jsonschema.validate(facet, _schema_of(definition))
                    checked.append(name)
    return checked


@cache
def _definitions() -> dict[str, type]:
    """The generated classes of facets, by the URL of their definition in the spec."""
    package = importlib.import_module("openlineage.client.generated")
    found = {}
    for name in {module.name for module in pkgutil.iter_modules(package.__path__)} - {"base"}:
        module = importlib.import_module(f"{package.__name__}.{name}")
        for _, item in inspect.getmembers(module, inspect.isclass):
            if attr.has(item) and hasattr(item, "_get_schema"):
                found[item._get_schema()] = item
    return found


def _schema_of(kind: Any) -> Json:
    """The JSON schema of a generated class."""
    found: dict[str, Json] = {}
    return {**_type_schema(kind, found), "$defs": found}


def _object_schema(kind: Any, found: dict[str, Json]) -> Json:
    """The schema of a class; schemas of the classes in its fields are added to `found`."""
    hints = typing.get_type_hints(kind)
    fields = {each.name: each for each in attr.fields(kind)}
    is_facet = "_schemaURL" in fields
    return {
        "type": "object",
        "properties": {**{name: _type_schema(hints[name], found) for name in fields}, **(_BASE if is_facet else {})},
        "required": [name for name, each in fields.items() if each.default is attr.NOTHING],
        "additionalProperties": not is_facet and hasattr(kind, "with_additional_properties"),
    }


def _type_schema(hint: Any, found: dict[str, Json]) -> Json:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_type_schema(each, found) for each in arguments]}
    if origin is list:
        return {"type": "array", "items": _type_schema(arguments[0], found)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _type_schema(arguments[1], found)}
    if hint in _SIMPLE:
        return {"type": _SIMPLE[hint]}
    if inspect.isclass(hint) and issubclass(hint, Enum):
        return {"enum": [each.value for each in hint]}
    if not attr.has(hint):
        return {}
    if hint.__name__ not in found:  # classes may contain themselves
        found[hint.__name__] = {}
        found[hint.__name__] = _object_schema(hint, found)
    return {"$ref": f"#/$defs/{hint.__name__}"}


@contextmanager
def sink() -> Iterator[tuple[str, list[Json]]]:
    """A server that accepts events on this machine: its URL, and the list that they are added to."""
    received: list[Json] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(201)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)
