"""Makes of a server's JSON Schema one that providers take: an object, valid by draft 2020-12, closed in itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

MAX_DEPTH = 40  # levels; what is deeper may be anything
_TYPES = ("string", "integer", "number", "boolean", "object", "array", "null")
# What servers write for these; anything else, as "any", says nothing.
_TYPE_NAMES = {
    "str": "string", "text": "string", "int": "integer", "float": "number", "double": "number", "bool": "boolean",
    "dict": "object", "map": "object", "list": "array", "tuple": "array", "none": "null",
}  # fmt: skip
_UNIONS = ("anyOf", "oneOf", "allOf")  # which no provider takes at the top
_SCHEMAS = (
    "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then", "unevaluatedItems",
    "unevaluatedProperties",
)  # fmt: skip
_MAPS = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
_LISTS = (*_UNIONS, "prefixItems")
# The kinds of other values. bool is no number, though draft 4 gave `exclusiveMinimum` one.
_SIZES = tuple(f"{end}{what}" for end in ("max", "min") for what in ("Contains", "Items", "Length", "Properties"))
_KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys("title description pattern format contentEncoding contentMediaType $comment".split(), str),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), (int, float)),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), bool),
    **dict.fromkeys(_SIZES, int),
    "examples": list,
}
_REFERENCE = re.compile(r"#(?:/(?:\$defs|definitions|properties)/|\Z)")
_DROPPED = (
    "$anchor", "$dynamicAnchor", "$dynamicRef", "$id", "$recursiveAnchor", "$recursiveRef", "$schema", "$vocabulary",
    "contentSchema", "dependencies", "dependentRequired", "id",
)  # fmt: skip


def provider_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema as far as it is one; what makes no sense in it is left out, so that more is allowed."""
    top = dict(schema)
    if isinstance(found := _resolved(top.get("$ref"), schema), Mapping):
        top = {**found, **{key: value for key, value in top.items() if key != "$ref"}}
    normal = _Normalizer(schema).normalize(top, 0)
    normal = _merged(normal, schema)
    for key in (*_UNIONS, "$ref", "enum", "const", "not", "if", "then", "else"):
        normal.pop(key, None)
    return {**normal, "type": "object", "properties": normal.get("properties", {})}


class _Normalizer:
    """Normalizes the parts of one schema, `root`, to which its references lead."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def normalize(self, schema: Any, depth: int) -> dict[str, Any]:
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH:  # true allows anything, as {} does
            return {}
        normal: dict[str, Any] = {}
        for key, value in schema.items():
            if key not in _DROPPED and (part := self._part(key, value, depth)) is not None:
                normal[key] = part
        if isinstance(items := schema.get("items"), list):  # as drafts up to 7 wrote tuples
            parts = [self.normalize(item, depth + 1) for item in items]
            normal["items"] = {"anyOf": parts} if parts else {}
        if normal.get("type") == "array" and "items" not in normal:
            normal["items"] = {}
        return normal

    def _part(self, key: str, value: Any, depth: int) -> Any:
        """The value of a keyword; None for one that is left out."""
        if key == "type":
            return _type(value)
        if key == "$ref":
            return value if isinstance(_resolved(value, self._root), Mapping | bool) else None
        if key in ("required", "enum"):
            return _unique(value, key)
        if key == "additionalProperties" and isinstance(value, bool):
            return value
        if key in _SCHEMAS:
            return self.normalize(value, depth + 1) if isinstance(value, Mapping | bool) else None
        if key in _MAPS:
            parts = value.items() if isinstance(value, Mapping) else ()
            return {name: self.normalize(part, depth + 1) for name, part in parts}
        if key in _LISTS:
            return [self.normalize(part, depth + 1) for part in value] if isinstance(value, list) and value else None
        if key in _KINDS:
            is_kind = isinstance(value, _KINDS[key]) and isinstance(value, bool) == (_KINDS[key] is bool)
            is_negative = (key in _SIZES or key == "multipleOf") and is_kind and value <= 0
            return value if is_kind and not is_negative else None
        return value


def _type(value: Any) -> str | list[str] | None:
    if isinstance(value, str):
        name = _TYPE_NAMES.get(value.lower(), value.lower())
        return name if name in _TYPES else None
    names = [_type(one) for one in value] if isinstance(value, list) else []
    known = list(dict.fromkeys(name for name in names if isinstance(name, str)))
    return known if known and len(known) == len(set(map(str, names))) else None  # with "any" in it, it says nothing


def _unique(value: Any, key: str) -> list[Any] | None:
    """The items of `required` or `enum`, each once."""
    items = value if isinstance(value, list) else []
    kept = {msgspec.json.encode(item): item for item in items if key == "enum" or isinstance(item, str)}
    return list(kept.values()) or None


def _resolved(reference: Any, root: Mapping[str, Any]) -> Any:
    """What a reference leads to within the parts of the schema that stay; None for others."""
    if not isinstance(reference, str) or not _REFERENCE.match(reference):
        return None
    found: Any = root
    for name in filter(None, reference[1:].split("/")):
        found = found.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found


def _merged(normal: dict[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with the properties of the alternatives at its top; required is what all of them require."""
    properties, required = dict(normal.get("properties", {})), list(normal.get("required", ()))
    for union in _UNIONS:
        branches = [_branch(branch, root) for branch in normal.get(union, ())]
        wanted = [set(branch.get("required", ())) for branch in branches]
        for branch in branches:
            for name, part in branch.get("properties", {}).items():
                properties.setdefault(name, part)
        if wanted:
            shared = set.union(*wanted) if union == "allOf" else set.intersection(*wanted)
            required += sorted(shared.difference(required))
    return {**normal, "properties": properties, **({"required": required} if required else {})}


def _branch(branch: dict[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    found = _resolved(branch.get("$ref"), root)
    branch = _Normalizer(root).normalize(found, 1) if isinstance(found, Mapping) else branch
    return _merged(branch, root) if any(union in branch for union in _UNIONS) and found is None else branch
