"""Names the tools of MCP servers as providers accept them: `mcp__SERVER__TOOL`, at most 64 letters, digits, - and _."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

LONGEST = 64  # characters; Anthropic's and OpenAI's limit for the name of a tool
_DIGEST = 8  # characters that tell shortened names apart


def tool_names(server: str, tools: Iterable[str], taken: set[str]) -> dict[str, str]:
    """The model's name for each tool of a server; those that are `taken` already are told apart by a hash.

    `taken` is added to.
    """
    named: dict[str, str] = {}
    for tool in tools:
        name = tool_name(server, tool)
        if len(name) > LONGEST or name in taken:
            digest = hashlib.sha256(f"{server}\0{tool}".encode()).hexdigest()[:_DIGEST]
            name = f"{name[: LONGEST - _DIGEST - 1]}_{digest}"
        taken.add(name)
        named[tool] = name
    return named


def tool_name(server: str, tool: str) -> str:
    """The name of a tool, or a prompt, as long as it is short enough.

    A server's own `__` becomes `_`, so that a rule about the server `git` is about no other one.
    """
    return f"mcp__{re.sub('__+', '_', plain(server))}__{plain(tool)}"


def plain(name: str) -> str:
    """A name with `_` in place of each character that providers refuse."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)
