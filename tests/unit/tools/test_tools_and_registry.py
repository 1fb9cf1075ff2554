"""What a tool tells the model of itself, how it reads arguments, and the registry that holds it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Struct

from agentcli.errors import ToolError, UsageError
from agentcli.tools.builtin.toolset import builtin_tools
from agentcli.tools.observation import call_title, cut_line, cut_middle, diff_counts
from agentcli.tools.tool import Tool, ToolContext, ToolOutput, ToolRegistry, schema_of
from tests.rows import each_row
from tests.unit.tools.bench import Bench

BUILTIN = ToolRegistry(builtin_tools())

# The contract's arguments: those that must be given, then those that may be.
CONTRACT = {
    "file_read": (["path"], ["offset", "limit"]),
    "file_write": (["path", "content"], []),
    "file_edit": (["path"], ["old_string", "new_string", "replace_all", "edits"]),
    "file_list": ([], ["path", "pattern", "depth", "include_ignored", "limit", "output_level"]),
    "grep_search": (
        ["pattern"],
        ["path", "glob", "type", "ignore_case", "multiline", "context", "output_mode", "limit", "output_level"],
    ),
    "bash": (["command"], ["timeout_ms", "cwd", "background", "unconfined", "description", "output_level"]),
    "jobs": (["action"], ["job_id"]),
    "web_fetch": (["url"], ["max_chars", "output_level"]),
    "web_search": (["query"], ["max_results"]),
    "read_more": (["result_id"], ["page"]),
    "memory": (["command"], ["path", "content"]),
    "recall": ([], ["query", "id"]),
    "think": (["thought"], []),
    "todo": (["items"], []),
}


async def nothing(arguments: Any, context: ToolContext) -> ToolOutput:
    return ToolOutput("")


class Nothing(Struct):
    pass


def tool(name: str, source: str = "builtin") -> Tool:
    return Tool(name, "Does nothing.", Nothing, nothing, "none", source)


def all_keys(schema: Any) -> set[str]:
    """The schema's own words, wherever they stand; names of arguments are none."""
    if isinstance(schema, list):
        return set().union(*map(all_keys, schema)) if schema else set()
    if not isinstance(schema, dict):
        return set()
    parts = [*schema.get("properties", {}).values(), *(v for k, v in schema.items() if k != "properties")]
    return set(schema).union(*map(all_keys, parts))


@each_row("name", CONTRACT)
def test_a_built_in_tool_takes_what_the_contract_says(name: str) -> None:
    schema = BUILTIN.get(name).spec().input_schema
    required, optional = CONTRACT[name]
    assert schema["type"] == "object"
    assert schema.get("required", []) == required
    assert sorted(schema["properties"]) == sorted([*required, *optional])


@each_row("name", CONTRACT)
def test_a_schema_holds_no_word_a_model_does_not_need(name: str) -> None:
    schema = BUILTIN.get(name).spec().input_schema
    assert not all_keys(schema) & {"$ref", "$defs", "title", "default", "anyOf"}
    assert "null" not in msgspec.json.encode(schema).decode()


def test_the_tools_together_fit_a_small_prompt() -> None:
    assert len(msgspec.json.encode(BUILTIN.specs())) < 7_000


def test_nested_arguments_are_written_out_in_the_schema() -> None:
    edits = BUILTIN.get("file_edit").spec().input_schema["properties"]["edits"]
    assert edits["type"] == "array"
    assert edits["items"]["required"] == ["old_string", "new_string"]
    assert edits["items"]["properties"]["replace_all"] == {"type": "boolean"}


def test_arguments_may_be_named_like_words_of_a_schema() -> None:
    class Odd(Struct):
        title: str
        default: int = 3
        required: str | None = None

    assert schema_of(Odd) == {
        "type": "object",
        "properties": {"title": {"type": "string"}, "default": {"type": "integer"}, "required": {"type": "string"}},
        "required": ["title"],
    }


def test_a_choice_of_two_kinds_stays_a_choice() -> None:
    class Either(Struct):
        value: int | str | None = None

    assert schema_of(Either)["properties"]["value"]["anyOf"] == [{"type": "integer"}, {"type": "string"}]


def test_a_choice_of_words_is_an_enum() -> None:
    properties = BUILTIN.get("grep_search").spec().input_schema["properties"]
    assert sorted(properties["output_mode"]["enum"]) == ["content", "count", "files"]
    assert sorted(properties["output_level"]["enum"]) == ["brief", "full", "standard"]


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("file_read", {}, "`path`"),
        ("file_read", {"path": None}, "`path`"),
        ("file_read", {"path": 5}, "$.path"),
        ("file_read", {"path": "a", "limit": "many"}, "$.limit"),
        ("file_read", {"path": "a", "offset": 0}, "$.offset"),
        ("file_read", {"path": "a", "limit": -1}, "$.limit"),
        ("grep_search", {"pattern": "a", "output_mode": "all"}, "$.output_mode"),
        ("file_edit", {"path": "a", "edits": [{"old_string": "x"}]}, "$.edits[0]"),
        ("bash", {"command": "ls", "timeout_ms": 0}, "$.timeout_ms"),
        ("bash", {"command": ["ls"]}, "$.command"),
    ],
)
def test_wrong_arguments_are_an_error_that_names_the_field_and_the_tool(
    name: str, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ToolError) as caught:
        BUILTIN.get(name).parse(given)
    assert caught.value.kind == "invalid_parameters"
    assert said in str(caught.value)
    assert f"Wrong arguments for {name}" in str(caught.value)


def test_the_error_says_what_the_tool_takes() -> None:
    with pytest.raises(ToolError, match=r"It takes path, offset\?, limit\?\."):
        BUILTIN.get("file_read").parse({"file": "a"})


def test_stray_keys_are_ignored() -> None:
    assert BUILTIN.get("file_read").parse({"path": "a", "encoding": "utf-8"}).path == "a"


def test_null_means_an_omitted_argument() -> None:
    parsed = BUILTIN.get("file_list").parse({"path": None, "limit": None, "include_ignored": None, "pattern": None})
    assert parsed == BUILTIN.get("file_list").parse({})


def test_numbers_and_truth_values_in_strings_are_taken() -> None:
    parsed = BUILTIN.get("bash").parse({"command": "ls", "timeout_ms": "500", "background": "true"})
    assert (parsed.timeout_ms, parsed.background) == (500, True)


def test_effects_say_what_the_permission_step_must_know() -> None:
    effects = {tool.name: tool.effect for tool in builtin_tools()}
    assert effects == {
        "file_read": "read",
        "file_write": "edit",
        "file_edit": "edit",
        "file_list": "read",
        "grep_search": "read",
        "bash": "command",
        "jobs": "none",
        "web_fetch": "web",
        "web_search": "web",
        "read_more": "none",
        "memory": "none",
        "recall": "none",
        "create_subagent": "agent",
        "skill": "none",
        "ask_user": "none",
        "think": "none",
        "todo": "none",
    }


def test_only_tools_that_change_nothing_may_overlap() -> None:
    overlapping = [tool.name for tool in builtin_tools() if tool.may_overlap]
    assert overlapping == [
        "file_read",
        "file_list",
        "grep_search",
        "jobs",
        "web_fetch",
        "web_search",
        "read_more",
        "memory",
        "recall",
        "create_subagent",
        "skill",
        "ask_user",
        "think",
        "todo",
    ]


def test_two_tools_of_a_name_are_an_error_that_names_both_sources() -> None:
    registry = ToolRegistry([tool("a", "builtin")])
    with pytest.raises(UsageError, match=r"'a'.*builtin.*mcp"):
        registry.register(tool("a", "mcp"))
    assert [t.source for t in registry] == ["builtin"]


def test_an_unknown_tool_is_an_error_that_lists_what_there_is() -> None:
    with pytest.raises(ToolError) as caught:
        ToolRegistry([tool("a"), tool("b")]).get("c")
    assert caught.value.kind == "not_found"
    assert str(caught.value) == "No tool 'c'; there is a, b."


def test_an_empty_registry_says_so() -> None:
    with pytest.raises(ToolError, match="there is none"):
        ToolRegistry().get("a")


def test_the_order_is_that_of_registration() -> None:
    registry = ToolRegistry(map(tool, "cab"))
    assert [spec.name for spec in registry.specs()] == ["c", "a", "b"]
    assert "a" in registry
    assert "d" not in registry


def test_a_clone_has_the_tools_asked_for_in_the_same_order() -> None:
    registry = ToolRegistry(map(tool, "abcd"))
    assert [t.name for t in registry.clone(exclude=["b"])] == ["a", "c", "d"]
    assert [t.name for t in registry.clone(only=["d", "a"])] == ["a", "d"]
    assert [t.name for t in registry.clone(only=["d", "a"], exclude=["a"])] == ["d"]
    assert [t.name for t in registry.clone(only=[])] == []


def test_a_clone_leaves_the_original_alone() -> None:
    registry = ToolRegistry(map(tool, "ab"))
    registry.clone().register(tool("c"))
    assert "c" not in registry


def test_only_names_that_exist_can_be_asked_for() -> None:
    with pytest.raises(UsageError, match="No tool 'z'; there is a, b"):
        ToolRegistry(map(tool, "ab")).clone(only=["a", "z"])


def test_think_records_and_does_nothing(bench: Bench) -> None:
    assert bench.text("think", thought="hm") == "Noted."
    assert bench.names() == set()


@pytest.mark.parametrize(
    ("name", "given", "title"),
    [
        ("file_read", {"path": "src/a.py", "limit": 3}, "Read src/a.py"),
        ("bash", {"command": "pytest -q\n  --lf"}, "Run pytest -q --lf"),
        ("grep_search", {"pattern": "TODO", "path": "src"}, "Search TODO in src"),
        ("grep_search", {"pattern": "TODO", "path": "."}, "Search TODO"),
        ("mcp__x__y", {"query": "q", "n": 1}, "mcp__x__y q"),
        ("file_list", {}, "List"),
        ("file_read", {"path": None}, "Read"),
    ],
)
def test_a_call_has_a_title_of_one_line(name: str, given: dict[str, Any], title: str) -> None:
    assert call_title(name, given) == title


def test_a_long_title_is_cut() -> None:
    assert len(call_title("bash", {"command": "x" * 500})) == len("Run ") + 300


def test_a_diff_of_nothing_counts_nothing() -> None:
    assert diff_counts("") == "+0 -0"


@pytest.mark.parametrize("length", [100, 101, 10_000])
def test_text_is_cut_in_the_middle_only_when_it_is_too_long(length: int) -> None:
    text = "".join(str(n % 10) for n in range(length))
    cut = cut_middle(text, 100)
    assert (cut == text) == (length <= 100)
    assert cut.startswith(text[:50])
    assert cut.endswith(text[-50:])
    if length > 100:
        assert f"[{length - 100:,} characters cut]" in cut


def test_the_middle_is_cut_between_lines() -> None:
    cut = cut_middle("".join(f"line {n}\n" for n in range(1_000)), 205)
    lines = cut.split("\n")
    assert all(line.startswith(("line ", "[")) or not line for line in lines)
    assert lines[0] == "line 0"
    assert lines[-2] == "line 999"


def test_a_line_is_cut_with_a_count_of_what_is_missing() -> None:
    assert cut_line("abcdef", 4) == "abcd[2 more characters]"
    assert cut_line("abcd", 4) == "abcd"
