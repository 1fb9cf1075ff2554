"""Arguments as real models write them."""

from __future__ import annotations

import json
import warnings
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcli.llm.wire.reply_parts import MAX_REPAIR_CHARS, calls_in_text, parse_arguments
from tests.properties import examples
from tests.rows import each_row

NAMES = frozenset({"read_file"})


@each_row(
    "written, read",
    [
        ("", {}),
        ("  \n", {}),
        ("{}", {}),
        ('{"a": [1, 2.5, null, true, "ü"]}', {"a": [1, 2.5, None, True, "ü"]}),
        ('{"a": 1, "a": 2}', {"a": 2}),
        ('"{\\"a\\": 1}"', {"a": 1}),
        ("{'a': 'b', 'c': True, 'd': None}", {"a": "b", "c": True, "d": None}),
        ("{'a': (1, 2)}", {"a": [1, 2]}),
        ("{'a': 'line\\n', 'b': True}", {"a": "line\n", "b": True}),
        ("{1: 'x'}", {"1": "x"}),
        ('{"a": 1,}', {"a": 1}),
        ('{"a": [1, 2,],}', {"a": [1, 2]}),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('```json\n{"a": "f() {\n}\n"}\n```', {"a": "f() {\n}\n"}),
        ('```\n{"a": "```js\\n1\\n```\\n",}\n```\n', {"a": "```js\n1\n```\n"}),
        ('{"a": "f() {\\n}\\n", "b": [true,],}', {"a": "f() {\n}\n", "b": [True]}),
        ('{"a": "x,]", "b": "\\",}", "c": true,}', {"a": "x,]", "b": '",}', "c": True}),
        ('{"a": "' + "x" * MAX_REPAIR_CHARS + '", "b": true,}', {"a": "x" * MAX_REPAIR_CHARS, "b": True}),
        ('{"a": "line\nline\ttab"}', {"a": "line\nline\ttab"}),
        ('{"a": "\\d+ \\w"}', {"a": "\\d+ \\w"}),
        ("{a: 1}", {"a": 1}),
        ('{"a": "b"', {"a": "b"}),
        ('{"a": NaN}', {"a": None}),
        ('{"a": "x\\ud83dy"}', {"a": "x\ufffdy"}),
        ('{"a": "\\ud83d\\ude00"}', {"a": "😀"}),
    ],
)
def test_arguments_are_read_as_they_were_meant(written: str, read: dict[str, Any]) -> None:
    assert parse_arguments(written) == read


@pytest.mark.parametrize(
    "written",
    ["null", "7", "[1]", '"text"', "path a", '{"a":1}{"b":2}', '{"a": "half of a', "[" * 100_000],
)
def test_what_cannot_be_an_object_is_none(written: str) -> None:
    assert parse_arguments(written) is None


def test_reading_odd_escapes_warns_nobody() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert parse_arguments('{"a": "\\d"}') == {"a": "\\d"}


def test_a_comma_inside_a_string_is_not_a_trailing_comma() -> None:
    assert parse_arguments('{"a": "x,}", \'b\': 1}') == {"a": "x,}", "b": 1}


@pytest.mark.parametrize(
    "written", ['{"a": "b"', '{"a": 1,}', "{'a': 1}", '```json\n{"a": 1}\n```', '{"a": "b', '{"a": 12']
)
def test_a_call_that_was_cut_is_never_repaired(written: str) -> None:
    assert parse_arguments(written, was_cut=True) is None


def test_a_whole_object_is_read_even_from_a_cut_reply() -> None:
    assert parse_arguments('{"a": 1}', was_cut=True) == {"a": 1}


def test_long_broken_arguments_are_not_repaired() -> None:
    assert parse_arguments('{"a": "' + "x" * MAX_REPAIR_CHARS + '"') is None
    assert parse_arguments('{"a": "' + "x" * 10 + '"') == {"a": "x" * 10}


objects = st.dictionaries(
    st.text(max_size=5), st.none() | st.booleans() | st.integers() | st.text(max_size=8), max_size=4
)


@examples(100)
@given(objects, st.booleans())
def test_json_is_read_as_it_is(value: dict[str, Any], ascii_only: bool) -> None:
    assert parse_arguments(json.dumps(value, ensure_ascii=ascii_only)) == value
    assert parse_arguments(json.dumps(json.dumps(value))) == value


@examples(150)
@given(st.text(alphabet=st.sampled_from("{}[]\"':,\\ntf0e-.`j ab\n\ud800"), max_size=20))
def test_any_outcome_can_be_stored(written: str) -> None:
    read = parse_arguments(written)
    assert read is None or isinstance(msgspec.json.encode(read), bytes)


@examples(100)
@given(objects.filter(bool), st.data())
def test_no_prefix_of_a_call_is_read_when_it_was_cut(value: dict[str, Any], data: Any) -> None:
    written = json.dumps(value)
    assert parse_arguments(written[: data.draw(st.integers(1, len(written) - 1))], was_cut=True) is None


# Calls written as text


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "read_file", "arguments": {"path": "a"}}</tool_call>',
        '<tool_call>{"name": "read_file", "arguments": {"path": "a"}}',
        '[TOOL_CALLS]{"name": "read_file", "arguments": {"path": "a"}}',
        '```\n{"name": "read_file", "arguments": {"path": "a"}}\n```',
        "{'name': 'read_file', 'arguments': {'path': 'a'}}",
    ],
)
def test_a_call_in_text_is_found(text: str) -> None:
    assert calls_in_text(text, NAMES) == [("read_file", {"path": "a"})]


def test_several_calls_in_text_are_found_in_order() -> None:
    text = "\n".join(
        f'<tool_call>{{"name": "read_file", "arguments": {{"path": "{name}"}}}}</tool_call>' for name in "abc"
    )
    assert [arguments["path"] for _, arguments in calls_in_text(text, NAMES)] == ["a", "b", "c"]


def test_a_tool_that_does_not_exist_is_not_called() -> None:
    assert calls_in_text('{"name": "delete_all", "arguments": {}}', NAMES) == []
    assert calls_in_text('{"name": ["read_file"], "arguments": {}}', NAMES) == []
    assert calls_in_text('{"name": "read_file", "arguments": 7}', NAMES) == []


def test_a_lone_surrogate_in_a_call_in_text_can_be_stored() -> None:
    ((_, arguments),) = calls_in_text('{"name": "read_file", "arguments": {"path": "\\ud800"}}', NAMES)
    assert arguments == {"path": "\ufffd"}
