"""Makes the beginning of requests: the system text and the tools, and the notes of a session's start."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from msgspec import structs

from agentcli.agent.context.nested_instructions import NestedInstructions
from agentcli.agent.state import AgentState
from agentcli.conversation.entries import Compaction, User, reminder
from agentcli.conversation.instructions import (
    Instructions,
    environment_note,
    files_note,
    find_instructions,
    git_branch,
    instruction_paths,
    system_prompt,
)
from agentcli.llm.messages import without_surrogates
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Prefix, ToolSpec
from agentcli.settings.load import Config
from agentcli.settings.paths import home_of, project_root
from agentcli.setup.options import Extras
from agentcli.tools.builtin.toolset import small_specs
from agentcli.tools.registry import ToolRegistry
from agentcli.tools.tool import Tool
from agentcli.tools.workspace import Workspace

MAX_INDEX_BYTES = 2_048  # bytes of the list of memory files
_WORDS_OF_KIND = 2
_USUAL_WINDOW = 200_000  # tokens; tools of MCP servers take no larger a share of a larger one, as each request pays

Kind = tuple[str, tuple[str, ...]]


@dataclass(kw_only=True)
class Opening:
    """Makes the beginning of requests. `skills` gives what a model with such a window, in tokens, is told of skills."""

    config: Config
    extras: Extras
    skills: Callable[[int], str]
    agents: Callable[[], str]
    on_notice: Callable[[str], None]
    _made: dict[tuple[bool, int, ToolRegistry], Prefix] = field(default_factory=dict, init=False)

    def prefix(self, info: ModelInfo, tools: ToolRegistry) -> Prefix:
        """Return the fixed beginning of requests to a kind of model."""
        kind = (info.small, info.window, tools)
        if (prefix := self._made.get(kind)) is None:
            own = [tool for tool in tools if not tool.server]
            specs = tuple(tool.spec() for tool in own)
            if info.small and not self.config.settings.tools.only:
                builtin = [tool.spec() for tool in own if tool.source == "builtin"]
                specs = (*small_specs(builtin), *(tool.spec() for tool in own if tool.source != "builtin"))
            names = {spec.name for spec in specs}
            agents = self.agents() if "create_subagent" in names else ""
            skills = self.skills(info.window) if "skill" in names else ""
            stubs, note = self._fitted([tool for tool in tools if tool.server], info.window)
            append = "\n\n".join(filter(None, (self.extras.append_system_prompt, agents, skills, note)))
            text = system_prompt(small=info.small, replace=self.extras.system_prompt, append=append)
            prefix = self._made[kind] = Prefix(text, (*specs, *stubs))
        return prefix

    def _fitted(self, tools: Sequence[Tool], window: int) -> tuple[tuple[ToolSpec, ...], str]:
        """Return the tools of MCP servers as far as their share of the window allows, and the note about stubs."""
        if not tools:
            return (), ""
        whole = tuple(tool.spec() for tool in tools)
        share = self.config.settings.mcp.share
        from agentcli.extensions.mcp.tools import NOTE, fitted

        shown = fitted(whole, int(min(window, _USUAL_WINDOW) * share))
        if left_out := [spec.name for spec in whole[len(shown) :]]:
            self.on_notice(
                f"{len(left_out)} tools of MCP servers are not shown to the model, as all take more than "
                f"{share:.0%} of its window (mcp.share): {', '.join(left_out[:5])} …"
            )
        return shown, NOTE if shown != whole else ""

    def for_agent(self, prompt: str) -> Opening:
        """Return that of a subagent, which is told what it is for."""
        appended = "\n\n".join(filter(None, (self.extras.append_system_prompt, prompt)))
        return replace(self, extras=structs.replace(self.extras, append_system_prompt=appended))

    def instructions(self) -> Instructions:
        """Return the instruction files that a session here is given."""
        config = self.config
        if self.extras.bare:
            return Instructions()
        user_files = [config.paths.config / "AGENTS.md", Path("~/.agents/AGENTS.md").expanduser()]
        return find_instructions(config.cwd, project_root(config.cwd), user_files, home_of(config.environment))

    def nested(self) -> NestedInstructions | None:
        """Return what finds those of deeper folders, for one session."""
        cwd, home = self.config.cwd, home_of(self.config.environment)
        return None if self.extras.bare else NestedInstructions(cwd, project_root(cwd), home)

    def notes(self, workspace: Workspace, info: ModelInfo) -> list[User]:
        """Say where the session runs, what the project says, which memory files there are."""
        cwd = self.config.cwd
        if info.small:
            notes = [files_note(cwd)]
        else:
            today = datetime.now(UTC).astimezone().strftime("%Y-%m-%d")
            branch = git_branch(project_root(cwd))
            notes = [environment_note(cwd=cwd, platform=sys.platform, date=today, branch=branch)]
        instructions = self.instructions()
        for notice in instructions.notices:
            self.on_notice(notice)
        if note := instructions.note():
            notes.append(note)
        memory = workspace.resources.memory
        if memory is not None and not info.small and (index := memory.index()):
            notes.append(_index_note(index))
        # Names of folders and files can be bytes that are no UTF-8, which neither the log nor a request holds.
        return [structs.replace(note, content=without_surrogates(note.content)) for note in notes]


def untold(notes: Sequence[User], state: AgentState) -> list[User]:
    """Return those of which a resumed conversation does not hold this text, or holds another one behind it."""
    newest: dict[Kind, str] = {}
    for entry in state.conversation.request_entries:
        if isinstance(entry.body, Compaction):
            newest |= {_kind(note): note.text for note in notes if note.text in entry.body.carried}
        elif isinstance(entry.body, User) and entry.body.is_reminder:
            newest[_kind(entry.body)] = entry.body.text
    return [note for note in notes if newest.get(_kind(note)) != note.text]


def _kind(note: User) -> Kind:
    """Return what every note of its kind has: its first words, and the instruction files that it names."""
    words = note.text.split(maxsplit=_WORDS_OF_KIND)[:_WORDS_OF_KIND]
    return " ".join(words), tuple(instruction_paths([note]))


def _index_note(index: Sequence[tuple[str, str]]) -> User:
    """List each memory file with its first line, as far as there is room."""
    lines: list[str] = []
    size = 0
    for name, first in index:
        line = f"- {name}: {first}" if first else f"- {name}"
        size += len(line.encode())
        if size > MAX_INDEX_BYTES:
            lines.append(f"({len(index) - len(lines)} more: memory view)")
            break
        lines.append(line)
    return reminder("\n".join(["Memory files of this project, each with its first line:", *lines]))
