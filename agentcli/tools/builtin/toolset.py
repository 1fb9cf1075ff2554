"""Lists the built-in tools with their arguments; a new one is a line of `builtin_tools`, its arguments and its body.

The text of tool x for the model is `x.md` beside this module. Every request needs texts and arguments, but only a call
needs a tool's body, so bodies are imported when they are first called.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from agentcli.llm.provider import ToolSpec
from agentcli.tools.tool import Effect, OutputLevel, Tool


class FileRead(Struct, frozen=True):
    path: str
    offset: Annotated[int, Meta(ge=1)] | None = None
    limit: Annotated[int, Meta(ge=0)] | None = None


class FileWrite(Struct, frozen=True):
    path: str
    content: str


class Edit(Struct, frozen=True):  # a docstring would be sent with every request
    old_string: str
    new_string: str
    replace_all: bool = False  # else `old_string` must occur only once


class FileEdit(Struct, frozen=True, kw_only=True):
    path: str
    old_string: str | None = None
    new_string: str | None = None
    replace_all: bool = False
    edits: tuple[Edit, ...] | None = None


class FileList(Struct, frozen=True, kw_only=True):
    path: str = "."
    pattern: str | None = None
    depth: Annotated[int, Meta(ge=1)] | None = None
    include_ignored: bool = False
    limit: Annotated[int, Meta(ge=0)] | None = None
    output_level: OutputLevel | None = None


class GrepSearch(Struct, frozen=True, kw_only=True):
    pattern: str
    path: str = "."
    glob: str | None = None
    type: str | None = None
    ignore_case: bool = False
    multiline: bool = False
    context: Annotated[int, Meta(ge=0, le=50)] = 0
    output_mode: Literal["content", "files", "count"] = "content"
    limit: Annotated[int, Meta(ge=0)] | None = None
    output_level: OutputLevel | None = None


class Bash(Struct, frozen=True, kw_only=True):
    command: str
    timeout_ms: Annotated[int, Meta(ge=1)] = 120_000
    cwd: str | None = None
    background: bool = False
    unconfined: bool = False
    description: str | None = None
    output_level: OutputLevel | None = None


class JobsCall(Struct, frozen=True):
    action: Literal["list", "read", "kill"]
    job_id: str | None = None


class ReadMore(Struct, frozen=True):
    result_id: str
    page: Annotated[int, Meta(ge=1)] = 2


class Recall(Struct, frozen=True):
    query: str | None = None
    id: str | None = None


class MemoryCall(Struct, frozen=True):
    command: Literal["view", "write", "delete"]
    path: str | None = None
    content: str | None = None


class AskUser(Struct, frozen=True):
    question: str
    options: tuple[str, ...] | None = None


class SkillCall(Struct, frozen=True):
    name: str = ""
    level: Literal[1, 2, 3] | None = None
    resource: str | None = None
    end: bool = False


class CreateSubagent(Struct, frozen=True, kw_only=True):
    task: str
    agent: str = "general"
    tools: tuple[str, ...] | None = None
    model: str | None = None
    max_turns: Annotated[int, Meta(ge=1)] | None = None
    max_budget_usd: Annotated[float, Meta(gt=0)] | None = None
    background: bool = False
    resume: str | None = None
    output_level: OutputLevel | None = None


class Think(Struct, frozen=True):
    thought: str


class TodoItem(Struct, frozen=True):
    content: str
    status: Literal["pending", "in_progress", "completed"]


class Todo(Struct, frozen=True):
    items: tuple[TodoItem, ...]


class WebFetch(Struct, frozen=True):
    url: str
    max_chars: Annotated[int, Meta(ge=1)] | None = None
    output_level: OutputLevel | None = None


class WebSearch(Struct, frozen=True):
    query: str
    max_results: Annotated[int, Meta(ge=1, le=20)] | None = None


def builtin_tools() -> tuple[Tool, ...]:
    """Return all built-in tools in the order in which the model sees them."""
    return (
        _make_tool("file_read", FileRead, "read"),
        _make_tool("file_write", FileWrite, "edit", file_arguments=("path",), is_idempotent=True),
        _make_tool("file_edit", FileEdit, "edit", file_arguments=("path",)),
        _make_tool("file_list", FileList, "read"),
        _make_tool("grep_search", GrepSearch, "read"),
        _make_tool("bash", Bash, "command", time_limit_s=None),  # the call itself sets a limit
        _make_tool("jobs", JobsCall, "none"),
        _make_tool("web_fetch", WebFetch, "web", is_idempotent=True),
        _make_tool("web_search", WebSearch, "web", is_idempotent=True),
        _make_tool("read_more", ReadMore, "none"),
        _make_tool("memory", MemoryCall, "none"),
        _make_tool("recall", Recall, "none"),
        _make_tool("create_subagent", CreateSubagent, "agent", time_limit_s=None, mode="session"),
        _make_tool("skill", SkillCall, "none", time_limit_s=None, mode="session"),
        _make_tool("ask_user", AskUser, "none", time_limit_s=None, mode="session"),
        _make_tool("think", Think, "none"),
        _make_tool("todo", Todo, "none"),
    )


def _make_tool(name: str, inputs: type[Struct], effect: Effect, **fields: Any) -> Tool:
    return Tool(
        name,
        Path(__file__).with_name(f"{name}.md").read_text("utf-8").strip(),
        inputs,
        _lazy(name, "run"),
        effect,
        dry_run=_lazy(name, "preview") if effect == "edit" else None,  # computes the diff
        narrow=_lazy(name, "narrow") if effect == "edit" else None,  # to the hunks that the person chose
        runs_commands=effect == "command",
        **fields,
    )


def _lazy(name: str, function: str) -> Any:
    """Return a function of a tool's module, which is imported at the first call: difflib and others take 5 ms."""

    async def call(*arguments: Any) -> Any:
        return await getattr(_import_body(name), function)(*arguments)

    return call


def _import_body(name: str) -> Any:
    body: Any
    match name:
        case "file_read":
            from agentcli.tools.builtin import file_read as body
        case "file_write" | "file_edit":
            from agentcli.tools.builtin import files as body
        case "file_list":
            from agentcli.tools.builtin import searching as body
        case "grep_search":
            from agentcli.tools.builtin import grep_search as body
        case "bash" | "jobs":
            from agentcli.tools.builtin import bash as body
        case "web_fetch" | "web_search" | "read_more" | "memory" | "recall" | "think" | "todo":
            from agentcli.tools.builtin import resources as body
        case _:
            raise ValueError(f"{name} has no body here: the session runs it")
    return body


# The few tools of a small model, with fewer arguments and shorter texts: about 300 tokens in all. A model of 1.5
# billion parameters chose tools better with these than with the full texts. By name: the text for the model, the
# required arguments, the optional ones.
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
    """Return the specs that a small model gets, with the texts and the arguments of `_SMALL`."""
    small: list[ToolSpec] = []
    for spec in (spec for spec in specs if spec.name in _SMALL):
        text, required, optional = _SMALL[spec.name]
        types = {name: {"type": spec.input_schema["properties"][name]["type"]} for name in (*required, *optional)}
        small.append(ToolSpec(spec.name, text, {"type": "object", "properties": types, "required": list(required)}))
    return tuple(small)
