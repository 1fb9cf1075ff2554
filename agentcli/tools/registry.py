"""The tools of a session, by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from agentcli.errors import ToolError, UsageError
from agentcli.llm.provider import ToolSpec
from agentcli.tools.tool import Tool


class ToolRegistry:
    """Names are unique. The order of registration is the order the model sees, the same in every request."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            self.register(tool)

    def register(self, tool: Tool) -> None:
        """Raises `UsageError` when the name is taken."""
        if tool.name in self._tools:
            raise UsageError(
                f"There are two tools named {tool.name!r} ({self._tools[tool.name].source}, {tool.source})."
            )
        self._tools[tool.name] = tool

    def get(self, name: str) -> Tool:
        """Raises `ToolError` (not_found) that lists what exists."""
        if name not in self._tools:
            raise ToolError(f"No tool {name!r}; there is {', '.join(self._tools) or 'none'}.", kind="not_found")
        return self._tools[name]

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __contains__(self, name: str) -> bool:
        return name in self._tools

    def clone(self, *, exclude: Collection[str] = (), only: Collection[str] | None = None) -> ToolRegistry:
        """Another registry without some tools, or with only some. Raises `UsageError` for an unknown name in `only`."""
        if only is not None and (missing := [name for name in only if name not in self._tools]):
            raise UsageError(f"No tool {missing[0]!r}; there is {', '.join(self._tools)}.")
        return ToolRegistry(tool for tool in self if tool.name not in exclude and (only is None or tool.name in only))

    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec() for tool in self)
