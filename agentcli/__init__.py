"""agentcli: a coding assistant for the terminal, and a library: `from agentcli import Agent`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentcli.version import __version__

if TYPE_CHECKING:
    from agentcli.library import Agent, AgentFailed

__all__ = ["Agent", "AgentFailed", "__version__"]


def __getattr__(name: str) -> Any:
    """`Agent` on demand: `agentcli --version` need not wait 100 ms for what it imports."""
    if name in ("Agent", "AgentFailed"):
        from agentcli import library

        return getattr(library, name)
    raise AttributeError(f"module 'agentcli' has no attribute {name!r}")
