"""The built-in tools; a new one is a line here, its arguments, its text (x.md) and its body (x.py)."""

from __future__ import annotations

from importlib import import_module
from importlib.resources import files
from typing import Any

import msgspec

from agentcli.tools.builtin import arguments
from agentcli.tools.tool import Effect, Tool, ToolContext, ToolOutput

_TOOLS: tuple[tuple[str, type[msgspec.Struct], Effect, float | None], ...] = (
    ("file_read", arguments.FileRead, "read", 120),
    ("file_write", arguments.FileWrite, "edit", 120),
    ("file_edit", arguments.FileEdit, "edit", 120),
    ("file_list", arguments.FileList, "read", 120),
    ("grep_search", arguments.GrepSearch, "read", 120),
    ("bash", arguments.Bash, "command", None),  # it keeps the limit the call asks for
    ("think", arguments.Think, "none", 120),
)


def builtin_tools() -> tuple[Tool, ...]:
    """All of them, in the order the model sees."""
    texts = files("agentcli.tools.builtin")
    return tuple(
        Tool(
            name,
            texts.joinpath(f"{name}.md").read_text("utf-8").strip(),
            takes,
            _body(name),
            effect,
            time_limit_s=limit,
            dry_run=_dry_run(name) if effect == "edit" else None,
        )
        for name, takes, effect, limit in _TOOLS
    )


def _body(name: str) -> Any:
    """Imports the tool's module at its first call: a first request need not wait 5 ms for difflib and the like."""

    async def run(given: Any, context: ToolContext) -> ToolOutput:
        output: ToolOutput = await import_module(f"agentcli.tools.builtin.{name}").run(given, context)
        return output

    return run


def _dry_run(name: str) -> Any:
    async def preview(given: Any, context: ToolContext) -> str:
        diff: str = await import_module(f"agentcli.tools.builtin.{name}").preview(given, context)
        return diff

    return preview
