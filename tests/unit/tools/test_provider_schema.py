"""Whatever a server gives as a schema becomes one that providers take."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from agentcli.extensions.mcp.tools import provider_schema
from tests.rows import each_row

TEXT = {"type": "string"}


def normal(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@each_row(
    "schema, becomes",
    [
        ({}, normal()),
        ({"anyOf": [normal(a=TEXT)]}, normal(a=TEXT)),
        (
            {"oneOf": [normal(a=TEXT) | {"required": ["a"]}, normal(b=TEXT) | {"required": ["a", "b"]}]},
            normal(a=TEXT, b=TEXT),
        ),
        (
            {"anyOf": [{"$ref": "#/$defs/A"}], "$defs": {"A": normal(a=TEXT)}},
            normal(a=TEXT) | {"$defs": {"A": normal(a=TEXT)}},
        ),
        ({"$ref": "#/$defs/A", "$defs": {"A": normal(a=TEXT)}}, normal(a=TEXT) | {"$defs": {"A": normal(a=TEXT)}}),
        (normal(a={"type": "any", "description": "A."}, b=True), normal(a={"description": "A."}, b={})),
        (
            normal(a={"type": ["string", "null"]}, b={"type": ["string", "any"]}),
            normal(a={"type": ["string", "null"]}, b={}),
        ),
        (normal(a={"type": "array"}), normal(a={"type": "array", "items": {}})),
        (normal(a={"type": "array", "items": [TEXT]}), normal(a={"type": "array", "items": {"anyOf": [TEXT]}})),
        (normal(a={"type": "string", "required": True, "enum": []}), normal(a=TEXT)),
        (normal(a={"$ref": "http://host.example/x"}, b={"$ref": "#/anyOf/0"}), normal(a={}, b={})),
        (normal(a={"$ref": "#"}), normal(a={"$ref": "#"})),
        (
            normal(a={"type": "integer", "minimum": 0, "exclusiveMinimum": True}),
            normal(a={"type": "integer", "minimum": 0}),
        ),
        (
            normal(type=TEXT, id=TEXT) | {"$schema": "http://json-schema.org/draft-04/schema#"},
            normal(type=TEXT, id=TEXT),
        ),
    ],
)
def test_it_is_an_object_closed_in_itself(schema: dict[str, Any], becomes: dict[str, Any]) -> None:
    before = copy.deepcopy(schema)
    assert provider_schema(schema) == becomes
    assert schema == before


WORDS = st.sampled_from(
    """type properties required items anyOf oneOf allOf not if enum const $ref $defs definitions minimum maxLength
    multipleOf pattern uniqueItems additionalProperties patternProperties prefixItems contains dependentSchemas default
    title format $id id $anchor examples object string any #""".split()
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(WORDS, VALUES, max_size=5))
def test_it_is_valid_whatever_the_server_gives(schema: dict[str, Any]) -> None:
    made = provider_schema(schema)
    Draft202012Validator.check_schema(made)
    assert made["type"] == "object"
    assert not {"anyOf", "oneOf", "allOf", "$ref", "enum", "not"} & made.keys()
    assert provider_schema(made) == made
