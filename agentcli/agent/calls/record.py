"""One call as permissions, hooks, the log and the metrics see it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from msgspec import Struct

from agentcli.agent.permissions.modes import Mode


class CallRecord(Struct, frozen=True):
    """`id` is the model's, `caller` the id of the agent that made the call, `mode` the mode it is judged by."""

    id: str
    tool: str
    version: str
    caller: str
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
