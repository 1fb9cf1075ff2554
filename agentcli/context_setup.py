"""Makes what keeps a session's conversation within its model's window; what compacts is imported when it is needed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentcli.agent.context_watch import ContextWatch
from agentcli.agent.state import AgentState
from agentcli.compaction_settings import CompactionSettings
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Provider
from agentcli.tools.tool import Workspace

if TYPE_CHECKING:
    from agentcli.agent.compaction import Compactor, Opening

Resolve = Callable[[AgentState], Awaitable[tuple[Provider, ModelInfo]]]
OfModel = Callable[[str], tuple[Provider, ModelInfo]]


def watch_context(
    settings: CompactionSettings,
    state: AgentState,
    workspace: Workspace,
    *,
    resolve: Resolve,
    of_model: OfModel,
    opening: Opening,
) -> ContextWatch:
    """`resolve` gives the session's model, `of_model` another by its name; `opening` the notes of a session's start."""

    async def writer() -> tuple[Provider, ModelInfo]:
        return of_model(settings.summary_model) if settings.summary_model else await resolve(state)

    def seen_hash(path: str) -> str:
        return workspace.files.hash_of(workspace.real_path(path))

    def make() -> Compactor:
        compaction, summaries = (import_module(f"agentcli.agent.{name}") for name in ("compaction", "summaries"))
        writing = summaries.Summaries(settings, writer, watch.paid, state.budgets)
        made: Compactor = compaction.Compactor(settings, opening, seen_hash, writing)
        return made

    watch = ContextWatch(settings, make)
    workspace.past = partial(_recall, state)
    return watch


def _recall(state: AgentState) -> Any:
    return import_module("agentcli.conversation.recall").Recall(state.conversation)
