"""What a front end shows of a session: its state at one moment, read in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from agentcli.agent.permissions.modes import Mode
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Assistant, Compaction
from agentcli.llm.messages import Usage
from agentcli.llm.provider import Effort
from agentcli.tools.tool import Workspace

if TYPE_CHECKING:
    from agentcli.agent.session import Session


class SessionSnapshot(Struct, frozen=True):
    """A session as a front end reads it; operations change it.

    `mode_before_plan` is the mode that plan mode was switched on from. `usage` and `cost_usd` (None: a price is
    unknown) are of the session so far, `by_model` the same by `provider/model`. `conversation` is only read.
    `mcp_servers` are names with a status each.
    """

    id: str
    model: str
    mode: Mode
    mode_before_plan: Mode
    effort: Effort | None
    workspace: Workspace
    tools: tuple[str, ...]
    conversation: Conversation
    usage: Usage
    cost_usd: float | None
    by_model: dict[str, tuple[Usage, float | None]]
    max_budget_usd: float | None
    max_turns: int
    is_busy: bool
    mcp_servers: list[dict[str, Any]] = []

    @property
    def running_jobs(self) -> int:
        """How many of its background jobs run now."""
        return sum(job.is_running for job in self.workspace.sandbox.jobs())

    @property
    def context_tokens(self) -> int:
        """Tokens of the next request; before this run's first one, of the newest reply or what a compaction left."""
        if tokens := self.conversation.size.now():
            return tokens
        for entry in reversed(self.conversation.path):
            match entry.body:
                case Assistant(usage=usage):
                    return usage.context_tokens
                case Compaction(tokens_after=tokens):
                    return tokens
                case _:
                    pass
        return 0


def snapshot_of(session: Session) -> SessionSnapshot:
    state, runtime, meter = session.state, session.runtime, session.state.meter
    return SessionSnapshot(
        session.id,
        state.model,
        state.mode,
        state.mode_before_plan,
        state.effort,
        runtime.calls.workspace,
        tuple(tool.name for tool in runtime.calls.tools),
        state.conversation,
        meter.total.usage,
        meter.total.whole_usd,
        meter.by_model,
        state.budgets.limit("session", "usd"),
        runtime.limits.max_turns,
        session.is_busy,
        runtime.calls.servers.listing() if runtime.calls.servers is not None else [],
    )
