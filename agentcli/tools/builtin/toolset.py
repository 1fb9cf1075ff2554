"""The built-in tools; a new one is a line here, its arguments, its text (x.md) and its body (x.py)."""

from __future__ import annotations

from importlib import import_module
from importlib.resources import files
from typing import Any

import msgspec

from agentcli.tools.builtin import arguments
from agentcli.tools.tool import Effect, Tool

_TOOLS: tuple[tuple[str, type[msgspec.Struct], Effect, float | None], ...] = (
    ("file_read", arguments.FileRead, "read", 120),
    ("file_write", arguments.FileWrite, "edit", 120),
    ("file_edit", arguments.FileEdit, "edit", 120),
    ("file_list", arguments.FileList, "read", 120),
    ("grep_search", arguments.GrepSearch, "read", 120),
    ("bash", arguments.Bash, "command", None),  # it keeps the limit the call asks for
    ("think", arguments.Think, "none", 120),
    ("todo", arguments.Todo, "none", 120),
)


def builtin_tools() -> tuple[Tool, ...]:
    """All of them, in the order the model sees."""
    texts = files("agentcli.tools.builtin")
    return tuple(
        Tool(
            name,
            texts.joinpath(f"{name}.md").read_text("utf-8").strip(),
            takes,
            _lazy(name, "run"),
            effect,
            time_limit_s=limit,
            dry_run=_lazy(name, "preview") if effect == "edit" else None,
            narrow=_lazy(name, "narrow") if effect == "edit" else None,
        )
        for name, takes, effect, limit in _TOOLS
    )


def _lazy(name: str, function: str) -> Any:
    """Imports the tool's module at its first call: a first request need not wait 5 ms for difflib and the like."""

    async def call(*given: Any) -> Any:
        return await getattr(import_module(f"agentcli.tools.builtin.{name}"), function)(*given)

    return call
