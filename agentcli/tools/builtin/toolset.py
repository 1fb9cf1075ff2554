"""The built-in tools; a new one is a line here, its arguments, its text (x.md) and its body."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct

from agentcli.llm.provider import ToolSpec
from agentcli.tools.builtin import arguments
from agentcli.tools.tool import Effect, Tool


def builtin_tools() -> tuple[Tool, ...]:
    """Return all of them, in the order the model sees."""
    return (
        _make_tool("file_read", arguments.FileRead, "read"),
        _make_tool("file_write", arguments.FileWrite, "edit", file_arguments=("path",), is_idempotent=True),
        _make_tool("file_edit", arguments.FileEdit, "edit", file_arguments=("path",)),
        _make_tool("file_list", arguments.FileList, "read"),
        _make_tool("grep_search", arguments.GrepSearch, "read"),
        _make_tool("bash", arguments.Bash, "command", time_limit_s=None),  # it keeps the limit the call asks for
        _make_tool("jobs", arguments.JobsCall, "none"),
        _make_tool("web_fetch", arguments.WebFetch, "web", is_idempotent=True),
        _make_tool("web_search", arguments.WebSearch, "web", is_idempotent=True),
        _make_tool("read_more", arguments.ReadMore, "none"),
        _make_tool("memory", arguments.MemoryCall, "none"),
        _make_tool("recall", arguments.Recall, "none"),
        _make_tool("create_subagent", arguments.CreateSubagent, "agent", time_limit_s=None, mode="session"),
        _make_tool("skill", arguments.SkillCall, "none", time_limit_s=None, mode="session"),
        _make_tool("ask_user", arguments.AskUser, "none", time_limit_s=None, mode="session"),
        _make_tool("think", arguments.Think, "none"),
        _make_tool("todo", arguments.Todo, "none"),
    )


def _make_tool(name: str, inputs: type[Struct], effect: Effect, **fields: Any) -> Tool:
    """Make a tool with its text and body; `fields` are those of `Tool`."""
    return Tool(
        name,
        Path(__file__).with_name(f"{name}.md").read_text("utf-8").strip(),
        inputs,
        _lazy(name, "run"),
        effect,
        dry_run=_lazy(name, "preview") if effect == "edit" else None,
        narrow=_lazy(name, "narrow") if effect == "edit" else None,
        runs_commands=effect == "command",
        **fields,
    )


def _lazy(name: str, function: str) -> Any:
    """Imports the tool's module at its first call: a first request need not wait 5 ms for difflib and the like."""

    async def call(*given: Any) -> Any:
        return await getattr(_import_body(name), function)(*given)

    return call


def _import_body(name: str) -> Any:
    body: Any
    match name:
        case "file_read":
            from agentcli.tools.builtin import file_read as body
        case "file_write" | "file_edit":
            from agentcli.tools.builtin import edits as body
        case "file_list":
            from agentcli.tools.builtin import file_list as body
        case "grep_search":
            from agentcli.tools.builtin import grep_search as body
        case "bash" | "jobs":
            from agentcli.tools.builtin import bash as body
        case "web_fetch" | "web_search":
            from agentcli.tools.builtin import web as body
        case "read_more" | "memory" | "recall" | "think" | "todo":
            from agentcli.tools.builtin import session as body
        case _:
            raise ValueError(f"{name} has no body here: the session runs it")
    return body


# The few tools a small model gets, with fewer arguments and shorter texts: its prompt starts at about 300 tokens. One
# of 1.5 billion parameters chose its tool better with these than with the full texts.
# name -> text for the model, arguments it must give, arguments it may give
_SMALL: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "file_read": ("Read a text file.", ("path",), ("offset", "limit")),
    "file_edit": ("Replace text in a file that was read before.", ("path", "old_string", "new_string"), ()),
    "grep_search": (
        "Search all files for a regular expression; path limits it to one file or folder.",
        ("pattern",),
        ("path",),
    ),
    "bash": ("Run a shell command: ls, wc, git, tests, programs.", ("command",), ()),
}


def small_specs(specs: Iterable[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Return the specs that a small model gets, cut down."""
    return tuple(_cut_down(spec) for spec in specs if spec.name in _SMALL)


def _cut_down(spec: ToolSpec) -> ToolSpec:
    text, required, optional = _SMALL[spec.name]
    known = spec.input_schema["properties"]
    properties = {name: {"type": known[name]["type"]} for name in (*required, *optional)}
    return ToolSpec(spec.name, text, {"type": "object", "properties": properties, "required": list(required)})
