"""agentcli: a coding assistant for the terminal, and a library: `from agentcli import Agent`."""

from __future__ import annotations

from agentcli.version import __version__

TYPE_CHECKING = False  # importing typing takes longer than all that is here, and signals are not heeded before its end
if TYPE_CHECKING:
    from agentcli.library import Agent, AgentFailed

__all__ = ["Agent", "AgentFailed", "__version__"]


def __getattr__(name: str) -> object:
    """`Agent` on demand: `agentcli --version` need not wait 100 ms for what it imports."""
    if name in ("Agent", "AgentFailed"):
        from agentcli import library

        found: object = getattr(library, name)
        return found
    raise AttributeError(f"module 'agentcli' has no attribute {name!r}")
