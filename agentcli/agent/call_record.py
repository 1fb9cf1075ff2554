"""One call as permissions, hooks, the log and the metrics see it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal

from msgspec import Struct

from agentcli.agent.permissions import Mode

# Who asked for a call: the conversation, a subagent in it, a skill, a hook, a client of the server, an MCP server.
Caller = Literal["main", "subagent", "skill", "hook", "client", "mcp"]


class CallRecord(Struct, frozen=True):
    """`id` is the model's. `mode` is the permission mode the call is judged by."""

    id: str
    tool: str
    version: str
    caller: Caller
    mode: Mode


@dataclass
class ToolMetrics:
    """The calls of one tool: `errors` by kind, `seconds` of all together."""

    calls: int = 0
    retries: int = 0
    seconds: float = 0.0
    errors: dict[str, int] = field(default_factory=lambda: defaultdict(int))


class CallMetrics:
    """What the calls of a session came to, by tool."""

    def __init__(self) -> None:
        self.by_tool: dict[str, ToolMetrics] = {}

    def add(self, record: CallRecord, *, seconds: float, retries: int, error_kind: str) -> None:
        tool = self.by_tool.setdefault(record.tool, ToolMetrics())
        tool.calls += 1
        tool.retries += retries
        tool.seconds += seconds
        if error_kind:
            tool.errors[error_kind] += 1
