"""Makes what keeps a conversation within its model's window, and what remembers beyond it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentcli.agent.context.nested_instructions import NestedInstructions
from agentcli.agent.context.watch import ContextWatch
from agentcli.agent.state import AgentState
from agentcli.conversation.entries import User
from agentcli.infra.memory_files import MemoryFiles, MemoryLimits, memory_folder
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Provider
from agentcli.settings.load import Config
from agentcli.settings.paths import project_root
from agentcli.settings.structs import CompactionSettings
from agentcli.tools.tool import Workspace

if TYPE_CHECKING:
    from agentcli.agent.context.compaction import Compactor, Opening

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
    nested: NestedInstructions | None,
    summaries: Path | None,
) -> ContextWatch:
    """`resolve` gives the session's model, `of_model` another by its name; `opening` the notes of a session's start.

    `summaries` is a folder for what models wrote; without one it is forgotten with the session.
    """

    def opening_now(info: ModelInfo) -> Sequence[User]:
        notes = [*opening(info)]
        if nested is not None and (
            note := nested.read_again(state.conversation, "".join(n.text for n in notes)).note()
        ):
            notes.append(note)
        return notes

    async def writer() -> tuple[Provider, ModelInfo]:
        return of_model(settings.summary_model) if settings.summary_model else await resolve(state)

    def seen_hash(path: str) -> str:
        return workspace.files.hash_of(workspace.real_path(path))

    def make() -> Compactor:
        from agentcli.agent.context.compaction import Compactor
        from agentcli.agent.context.summaries import Summaries
        from agentcli.infra.summary_files import SummaryFiles

        kept = SummaryFiles(summaries, hours=settings.cache_hours, most=settings.cache_entries) if summaries else None
        written = Summaries(settings, writer, watch.paid, state.budgets, kept=kept)
        return Compactor(settings, opening_now, seen_hash, written)

    watch = ContextWatch(settings, make)
    workspace.past = partial(_recall, state)
    return watch


def make_memory(config: Config) -> MemoryFiles:
    """The memory files of the project that is worked on."""
    settings = config.settings.memory
    limits = MemoryLimits(settings.max_file_kb * 1024, settings.max_total_kb * 1024, settings.max_files)
    return MemoryFiles(memory_folder(config.paths.state, project_root(config.cwd)), limits)


def _recall(state: AgentState) -> Any:
    from agentcli.conversation.recall import Recall

    return Recall(state.conversation)
