"""Checks the JSON Schema of a tool's arguments."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import orjson
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for
from referencing import Registry, Specification
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, Schema, UnknownDialect, specification_with

MAX_SCHEMA_BYTES = 64 * 1024


@lru_cache(maxsize=256)
def schema_defect(text: str) -> str:
    """Say what is wrong with a schema given as JSON text; empty for nothing.

    A usual schema takes about 2 ms once and nothing when it comes again. References must point into the schema
    itself, so that checking arguments later never reads another address.
    """
    try:
        return _defect(text)
    except orjson.JSONDecodeError as error:
        return f"is no valid JSON: {error}"
    except UnknownDialect:
        return "has an unknown $schema; leave it out for draft 2020-12"
    except SchemaError as error:
        return f"is no valid JSON Schema at {error.json_path}: {error.message[:200]}"
    except RecursionError:
        return "is nested too deeply"


def _defect(text: str) -> str:
    if len(text.encode()) > MAX_SCHEMA_BYTES:
        return f"is larger than {MAX_SCHEMA_BYTES // 1024} KiB"
    schema = orjson.loads(text)
    if not isinstance(schema, dict):
        return "is no JSON object"
    specification = _specification(schema)
    validator_for(schema, default=Draft202012Validator).check_schema(schema)
    return _reference_defect(schema, specification)


def _specification(schema: dict[str, Any]) -> Specification[Schema]:
    if "$schema" not in schema:
        return DRAFT202012
    return specification_with(str(schema["$schema"]))


def _reference_defect(schema: dict[str, Any], specification: Specification[Schema]) -> str:
    registry: Registry[Schema] = Registry()
    resolver = registry.resolver_with_root(specification.create_resource(schema))
    for reference in _references(schema):
        try:
            resolver.lookup(reference)
        except (Unresolvable, ValueError):  # ValueError: no URI at all, or a list index that is no number
            return f"has a $ref that points nowhere in the schema: {reference[:200]}"
    return ""


def _references(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key in {"$ref", "$dynamicRef"} and isinstance(value, str):
                yield value
            else:
                yield from _references(value)
    elif isinstance(node, list):
        for item in node:
            yield from _references(item)
