"""Names the tools of MCP servers as providers accept them: `mcp__SERVER__TOOL`, at most 64 letters, digits, - and _."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

LONGEST = 64  # characters; Anthropic's and OpenAI's limit for the name of a tool
_DIGEST = 8  # characters that tell shortened names apart


def tool_names(server: str, tools: Iterable[str]) -> dict[str, str]:
    """The model's name for each tool of a server; names that would be alike are told apart by a hash."""
    named: dict[str, str] = {}
    taken: set[str] = set()
    for tool in tools:
        name = tool_name(server, tool)
        if len(name) > LONGEST or name in taken:
            digest = hashlib.sha256(f"{server}\0{tool}".encode()).hexdigest()[:_DIGEST]
            name = f"{name[: LONGEST - _DIGEST - 1]}_{digest}"
        taken.add(name)
        named[tool] = name
    return named


def tool_name(server: str, tool: str) -> str:
    """The name of a tool, or a prompt, as long as it is short enough."""
    return f"mcp__{plain(server)}__{plain(tool)}"


def plain(name: str) -> str:
    """A name with `_` in place of each character that providers refuse."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)
