"""Typed answers: derives a JSON Schema from a caller's type, and converts answers to instances of the type."""

from __future__ import annotations

from types import UnionType
from typing import TYPE_CHECKING, Any, TypeAlias, Union, get_args, get_origin

import msgspec

from agentcli.agent.events import Done, Output, TurnFailed
from agentcli.agent.result import AnswerSchema, Convert
from agentcli.errors import UsageError
from agentcli.tools.observation import cut_middle

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    OutputType: TypeAlias = TypeForm[Output] | UnionType | dict[str, Any]
else:
    OutputType = type[Output] | UnionType | dict[str, Any]

Schema = dict[str, Any]
# Keywords that stay as they are, and keywords that `strict_form` rewrites or drops; others go to the description.
_KEPT = frozenset("type description enum const format $ref additionalProperties".split())
_STRUCTURE = frozenset("title discriminator anyOf oneOf items properties required $defs".split())
_STRICT_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")
_TYPES: dict[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def typed_end(end: Done | TurnFailed, schema: AnswerSchema | None) -> Done[Any] | TurnFailed:
    """Return the end of a turn with its answer converted, or a failure if the answer does not fit the schema."""
    if schema is None or isinstance(end, TurnFailed) or end.reason == "paused":  # a paused turn has no answer yet
        return end
    try:
        return msgspec.structs.replace(end, output=schema.value(end.text))
    except ValueError as problem:
        why = f"The answer ({end.reason}) does not fit the output type: {problem}."
    shared = {name: getattr(end, name) for name in ("turns", "usage", "cost_usd", "denials")}
    error = f"{why} The answer was: {cut_middle(end.text, 2_000)}"
    return TurnFailed(error, is_retryable=False, error_type="MisfitAnswer", **shared)


def output_schema(output_type: OutputType[Any]) -> AnswerSchema:
    """Return the schema for answers of a type; a dict is the caller's own schema. Raises `UsageError`."""
    if isinstance(output_type, dict):
        return AnswerSchema(output_type, name="The output_type")  # the name in error messages
    try:
        found, convert = _schema_and_conversion(output_type)
    except (TypeError, ValueError, NameError) as error:
        raise UsageError(f"{output_type!r} cannot be an output_type: {error}") from error
    schema = strict_form(found)
    definitions = schema.pop("$defs", {})
    if schema.keys() == {"$ref"}:  # providers' strict modes require an object at the top level
        schema = definitions[schema["$ref"].removeprefix("#/$defs/")]
    is_wrapped = schema.get("type") != "object"
    schema = _object({"value": schema}) if is_wrapped else schema

    def read_answer(given: Any) -> Any:
        has_wrapper = is_wrapped and isinstance(given, dict) and [*given] == ["value"]  # a model may leave it out
        return convert(given["value"] if has_wrapper else given)

    return AnswerSchema(schema | ({"$defs": definitions} if definitions else {}), read_answer)


def _schema_and_conversion(kind: Any) -> tuple[Schema, Convert]:
    """Return the JSON Schema of a type, and a function from JSON values to its instances. Raises `TypeError`.

    Values of a union whose members msgspec cannot tell apart are wrapped in an object, whose key names the member.
    """
    if any(hasattr(each, "__pydantic_complete__") for each in (kind, *get_args(kind))):
        from pydantic import TypeAdapter  # it is installed, because the caller's type uses it

        adapter = TypeAdapter(kind)
        return adapter.json_schema(), lambda value: adapter.validate_json(msgspec.json.encode(value))
    try:
        return msgspec.json.schema(kind), lambda value: msgspec.convert(value, kind)
    except TypeError:
        if get_origin(kind) not in (Union, UnionType):
            raise
    # Only their fields distinguish the members of this union, so an answer must name its member.
    names = [member.__name__ if isinstance(member, type) else str(member) for member in get_args(kind)]
    if len({*names}) < len(names):
        raise TypeError("two of its members have the same name")
    members = dict(zip(names, map(_schema_and_conversion, get_args(kind)), strict=True))
    definitions: Schema = {}
    for schema, _ in members.values():
        for name, part in schema.pop("$defs", {}).items():
            if definitions.setdefault(name, part) != part:
                raise TypeError(f"two types in its members are called {name}")

    def convert(value: Any) -> Any:
        match value:
            case {**named} if len(named) == 1 and (name := next(iter(named))) in members:
                return members[name][1](named[name])
        raise ValueError(f"$: expected an object with one key of {', '.join(members)}")

    return {"anyOf": [_object({name: part}) for name, (part, _) in members.items()], "$defs": definitions}, convert


def strict_form(schema: Schema) -> Schema:
    """Return a schema in the form of providers' strict modes: all fields required, limits moved to the description."""
    has_other_format = "format" in schema and schema["format"] not in _STRICT_FORMATS
    kept = _KEPT - {"format"} if has_other_format else _KEPT
    strict: Schema = {key: schema[key] for key in schema if key in kept}
    limits = [f"{key}: {msgspec.json.encode(schema[key]).decode()}" for key in schema if key not in kept | _STRUCTURE]
    if limits:  # strict modes reject these keywords, but the model can read them
        strict["description"] = "; ".join(filter(None, (schema.get("description"), *limits)))
    if "$ref" in strict and len(strict) > 1:  # a reference must stand alone
        strict["anyOf"] = [{"$ref": strict.pop("$ref")}]
    elif choices := schema.get("anyOf") or schema.get("oneOf"):
        strict["anyOf"] = [strict_form(choice) for choice in choices]
    if "enum" in strict and "type" not in strict:  # msgspec gives no type for a `Literal`
        types = sorted({_TYPES[type(value)] for value in strict["enum"]})
        strict["type"] = types if len(types) > 1 else types[0]
    if "items" in schema or "prefixItems" in schema:  # a tuple has `prefixItems`; their order is lost here
        strict["items"] = strict_form(schema.get("items") or {"anyOf": schema["prefixItems"]})
    if "properties" in schema:
        strict |= _object({name: strict_form(part) for name, part in schema["properties"].items()})
    if "$defs" in schema:
        strict["$defs"] = {name: strict_form(part) for name, part in schema["$defs"].items()}
    return strict


def _object(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
