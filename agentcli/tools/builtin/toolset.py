"""The built-in tools; a new one is a line here, its arguments, its text (x.md) and its body (x.py)."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec import Struct

from agentcli.tools.builtin import arguments
from agentcli.tools.tool import Effect, Tool, ToolMode


class Row(Struct, frozen=True):
    """What a tool is apart from its text and body; the fields mean what they mean in `Tool`."""

    name: str
    arguments: type[Struct]
    effect: Effect
    time_limit_s: float | None = 120.0
    file_arguments: tuple[str, ...] = ()
    is_idempotent: bool = False
    mode: ToolMode = "server"


TOOLS = (
    Row("file_read", arguments.FileRead, "read"),
    Row("file_write", arguments.FileWrite, "edit", file_arguments=("path",), is_idempotent=True),
    Row("file_edit", arguments.FileEdit, "edit", file_arguments=("path",)),
    Row("file_list", arguments.FileList, "read"),
    Row("grep_search", arguments.GrepSearch, "read"),
    Row("bash", arguments.Bash, "command", time_limit_s=None),  # it keeps the limit the call asks for
    Row("jobs", arguments.Jobs, "none"),
    Row("web_fetch", arguments.WebFetch, "web", is_idempotent=True),
    Row("web_search", arguments.WebSearch, "web", is_idempotent=True),
    Row("read_more", arguments.ReadMore, "none"),
    Row("memory", arguments.MemoryCall, "none"),
    Row("recall", arguments.Recall, "none"),
    Row("create_subagent", arguments.CreateSubagent, "agent", time_limit_s=None, mode="session"),
    Row("skill", arguments.SkillCall, "none", time_limit_s=None, mode="session"),
    Row("ask_user", arguments.AskUser, "none", time_limit_s=None, mode="session"),
    Row("think", arguments.Think, "none"),
    Row("todo", arguments.Todo, "none"),
)


def builtin_tools() -> tuple[Tool, ...]:
    """All of them, in the order the model sees."""
    return tuple(
        Tool(
            row.name,
            Path(__file__).with_name(f"{row.name}.md").read_text("utf-8").strip(),
            row.arguments,
            _lazy(row.name, "run"),
            row.effect,
            time_limit_s=row.time_limit_s,
            dry_run=_lazy(row.name, "preview") if row.effect == "edit" else None,
            narrow=_lazy(row.name, "narrow") if row.effect == "edit" else None,
            attempt=_lazy(row.name, "attempt") if row.effect == "command" else None,
            file_arguments=row.file_arguments,
            is_idempotent=row.is_idempotent,
            mode=row.mode,
        )
        for row in TOOLS
    )


def _lazy(name: str, function: str) -> Any:
    """Imports the tool's module at its first call: a first request need not wait 5 ms for difflib and the like."""

    async def call(*given: Any) -> Any:
        return await getattr(_import_body(name), function)(*given)

    return call


def _import_body(name: str) -> ModuleType:
    match name:
        case "file_read":
            from agentcli.tools.builtin import file_read

            return file_read
        case "file_write":
            from agentcli.tools.builtin import file_write

            return file_write
        case "file_edit":
            from agentcli.tools.builtin import file_edit

            return file_edit
        case "file_list":
            from agentcli.tools.builtin import file_list

            return file_list
        case "grep_search":
            from agentcli.tools.builtin import grep_search

            return grep_search
        case "bash":
            from agentcli.tools.builtin import bash

            return bash
        case "jobs":
            from agentcli.tools.builtin import jobs

            return jobs
        case "web_fetch":
            from agentcli.tools.builtin import web_fetch

            return web_fetch
        case "web_search":
            from agentcli.tools.builtin import web_search

            return web_search
        case "read_more":
            from agentcli.tools.builtin import read_more

            return read_more
        case "memory":
            from agentcli.tools.builtin import memory

            return memory
        case "recall":
            from agentcli.tools.builtin import recall

            return recall
        case "think":
            from agentcli.tools.builtin import think

            return think
        case "todo":
            from agentcli.tools.builtin import todo

            return todo
        case _:
            raise ValueError(f"{name} has no body here: the session runs it")
