"""Makes the JSON Schema of a tool's arguments, and checks arguments against one that somebody else wrote."""

from __future__ import annotations

from typing import Any

import msgspec

_JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str, "boolean": bool, "integer": int, "number": (int, float), "array": list, "object": dict,
}  # fmt: skip


def problem_with(input: dict[str, Any], schema: dict[str, Any], *, is_closed: bool) -> str:
    """The first argument that a foreign schema does not allow, by names and plain types; its owner checks the rest.

    With `is_closed` a name that is not in the schema is a problem, unless it allows others.
    """
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in input:
            return f"{name} is missing ({_type_in(properties, name) or 'a value'})"
    for name, value in input.items():
        if is_closed and name not in properties and properties and name != "output_level":
            if not schema.get("additionalProperties") and "patternProperties" not in schema:
                return f"there is no {name}"
            continue
        wanted = _type_in(properties, name)
        if wanted not in _JSON_TYPES or value is None:
            continue
        if not isinstance(value, _JSON_TYPES[wanted]) or (isinstance(value, bool) and wanted != "boolean"):
            return f"{name} has to be of type {wanted}"
    return ""


def _type_in(properties: dict[str, Any], name: str) -> str:
    """The one type that a schema gives a property; empty where it gives none, or several."""
    found = properties.get(name)
    wanted = found.get("type") if isinstance(found, dict) else None
    return wanted if isinstance(wanted, str) else ""


def schema_of(arguments: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema of a tool's arguments, as short as it can be: no `$ref`, `title`, `default` or null branch."""
    (top,), definitions = msgspec.json.schema_components([arguments], ref_template="{name}")
    flat = _flattened(top, definitions)
    return {"type": "object", **{key: flat[key] for key in ("properties", "required") if flat.get(key)}}


def _flattened(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        schema = definitions[schema["$ref"]]
    if "anyOf" in schema:
        branches = [branch for branch in schema["anyOf"] if branch.get("type") != "null"]
        if len(branches) == 1:
            schema = {**{k: v for k, v in schema.items() if k != "anyOf"}, **branches[0]}
            return _flattened(schema, definitions)
    flat: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("title", "default") or (key == "required" and not value):
            continue
        if key == "properties":
            flat[key] = {name: _flattened(part, definitions) for name, part in value.items()}
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            flat[key] = _flattened(value, definitions)
        elif key == "anyOf":
            flat[key] = [_flattened(part, definitions) for part in value if part.get("type") != "null"]
        else:
            flat[key] = value
    if "enum" in flat:
        flat.pop("type", None)
    return flat
