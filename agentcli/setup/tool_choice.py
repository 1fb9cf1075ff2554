"""Chooses the tools of a session: those the settings name, as far as they can work here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

from agentcli.errors import ConfigError, did_you_mean
from agentcli.settings.load import Config
from agentcli.tools.builtin.toolset import builtin_tools
from agentcli.tools.own_tools import guarded
from agentcli.tools.registry import ToolRegistry
from agentcli.tools.tool import Tool


class ToolChoice:
    """`added` are a caller's tools, `can_work` says of a built-in one if it has what it needs here."""

    def __init__(self, config: Config, added: Sequence[Tool], can_work: Callable[[str], bool]) -> None:
        self._config = config
        self._added = added
        self._can_work = can_work

    @cached_property
    def every(self) -> ToolRegistry:
        """All tools there are, whatever the settings say."""
        added = (replace(tool, source="library") if tool.source == "builtin" else tool for tool in self._added)
        return ToolRegistry((*builtin_tools(), *map(guarded, added)))

    def named(self) -> ToolRegistry:
        """All tools, or those the settings name. Raises `ConfigError` for a name that no tool has."""
        settings, tools = self._config.settings.tools, self.every
        only = settings.only
        for key, names in (("tools.only", only), ("tools.output_levels", settings.output_levels)):
            for name in names:
                if name not in tools and name != "none" and not name.startswith("mcp__"):
                    known = [tool.name for tool in tools]
                    message = f"No tool {name!r}{did_you_mean(name, known)}; there is {', '.join(known)}."
                    raise self._config.error(message, key, item=name if key == "tools.only" else "")
        named = [name for name in only if name != "none" and not name.startswith("mcp__")]
        return tools.clone(only=named if only else None)

    def offered(self, on_notice: Callable[[str], None]) -> ToolRegistry:
        """Those of them that can work here: without a provider a search could only fail."""
        tools = self.named()
        left_out = [tool.name for tool in tools if tool.source == "builtin" and not self._can_work(tool.name)]
        if "web_search" in left_out and "web_search" in self._config.settings.tools.only:
            on_notice("web_search is not offered to the model: it needs a key of Tavily (TAVILY_API_KEY).")
        return tools.clone(exclude=left_out) if left_out else tools


def has_key(config: Config, variable: str) -> bool:
    try:
        return bool(config.place_of_key(variable))
    except ConfigError:  # told where a key is needed, and by doctor
        return False
