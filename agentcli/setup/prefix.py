"""Builds the prefix of requests (system text and tools), and the system reminders of a session's start."""

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct, field, structs

from agentcli.agent.state import AgentState
from agentcli.agent.steps.messages import NestedInstructions
from agentcli.conversation import instructions as instruction_texts
from agentcli.conversation.entries import Compaction, User, reminder
from agentcli.conversation.rule_files import RuleFileFinder
from agentcli.llm.messages import content_blocks
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Prefix, ToolSpec
from agentcli.settings.files import home_of, is_file, project_root
from agentcli.settings.load import Config
from agentcli.setup.options import SessionOptions
from agentcli.tools.builtin.toolset import small_specs
from agentcli.tools.tool import Tool, ToolRegistry
from agentcli.tools.workspace import Workspace

MAX_INDEX_BYTES = 2_048  # in the list of memory files
_KIND_WORDS = 2  # the number of first words that identify the kind of a reminder
_USUAL_WINDOW = 200_000  # tokens; in a larger one MCP tools get no more, because each request pays for them

ReminderKind = tuple[str, tuple[str, ...]]  # first words, paths of instruction files


class PrefixBuilder(Struct, kw_only=True):
    """Builds the prefix for each kind of model once, so that the provider's prompt cache stays valid.

    `agents` lists the subagents for a window in tokens. `skills` gets that list, too, and fills the space it leaves.
    """

    config: Config
    options: SessionOptions
    skills: Callable[[int, str], str]
    agents: Callable[[int], str]
    on_notice: Callable[[str], None]
    is_for_agent: bool = False  # for a subagent, to which the output style does not apply
    _built: dict[tuple[bool, int, ToolRegistry], Prefix] = field(default_factory=dict)

    def prefix(self, info: ModelInfo, tools: ToolRegistry) -> Prefix:
        """Return the system text and the specs of the tools for a model, the same objects at every call."""
        key = (info.small, info.window, tools)
        if (prefix := self._built.get(key)) is None:
            local_tools = [tool for tool in tools if not tool.server]  # not of MCP servers
            specs = tuple(tool.spec() for tool in local_tools)
            if info.small and not self.config.settings.tools.only:  # fewer and shorter tools, unless the person chose
                builtin = [tool.spec() for tool in local_tools if tool.source == "builtin"]
                specs = (*small_specs(builtin), *(tool.spec() for tool in local_tools if tool.source != "builtin"))
            names = {spec.name for spec in specs}
            agents = self.agents(info.window) if "create_subagent" in names else ""
            skills = self.skills(info.window, agents) if "skill" in names else ""
            server_specs, shortening_note = self._fit_servers([tool for tool in tools if tool.server], info.window)
            replacement, style = self._system_text()
            append = _join(style, self.options.append_system_prompt, agents, skills, shortening_note)
            text = instruction_texts.system_prompt(small=info.small, replace=replacement, append=append)
            prefix = self._built[key] = Prefix(text, (*specs, *server_specs))
        return prefix

    def _system_text(self) -> tuple[str | None, str]:
        """Return the text to use in place of agentcli's instructions, None to keep them; and a text to append."""
        replacement = self.options.system_prompt
        if self.is_for_agent or self.options.is_bare or not self.config.settings.instructions.output_style:
            return replacement, ""
        from agentcli.extensions.output_styles import chosen_style

        if (style := chosen_style(self.config, self.on_notice)) is None:
            return replacement, ""
        if style.keeps_instructions or replacement is not None:
            return replacement, style.text
        return style.text, ""

    def _fit_servers(self, tools: Sequence[Tool], window: int) -> tuple[tuple[ToolSpec, ...], str]:
        """Return the tools of MCP servers in as much detail as fits, and a note for the model if some are shortened."""
        if not tools:
            return (), ""
        from agentcli.extensions.mcp.tools import STUBS_NOTE, fit_tools

        specs, share = tuple(tool.spec() for tool in tools), self.config.settings.mcp.share
        max_tokens = int(min(window, _USUAL_WINDOW) * share)
        shown = fit_tools(specs, max_tokens)  # in full, or as stubs, or without the last ones
        if left_out := [spec.name for spec in specs[len(shown) :]]:
            self.on_notice(
                f"{len(left_out)} MCP tools are hidden from the model because all of them would use more than "
                f"{share:.0%} of its window (mcp.share): {', '.join(left_out[:5])} …"
            )
        return shown, STUBS_NOTE if shown != specs else ""

    def for_agent(self, prompt: str) -> "PrefixBuilder":
        """Return the builder for a subagent, whose system text ends with its own prompt."""
        options = structs.replace(self.options, append_system_prompt=_join(self.options.append_system_prompt, prompt))
        return structs.replace(self, options=options, is_for_agent=True, _built={})

    def instructions(self) -> instruction_texts.Instructions:
        """Read the person's instruction file, and those of the project from its root to the working directory."""
        if (finder := self.rule_file_finder()) is None:  # with `--bare`, no instructions are read
            return instruction_texts.Instructions()
        config = self.config
        user_files = [config.paths.config / "AGENTS.md", Path("~/.agents/AGENTS.md").expanduser()]
        if "claude" not in finder.disabled and not any(map(is_file, user_files)):  # Claude Code's file replaces them
            folder = config.environment.get("CLAUDE_CONFIG_DIR") or home_of(config.environment) / ".claude"
            user_files = [Path(folder, "CLAUDE.md")]
        return instruction_texts.find_instructions(config.cwd, user_files, finder=finder)

    def rule_file_finder(self) -> RuleFileFinder | None:
        """Return a finder of the project's rule files, such as .cursor/rules; None if instructions are not read."""
        if self.options.is_bare:
            return None
        cwd, home, off = self.config.cwd, home_of(self.config.environment), self.config.settings.instructions.off
        return RuleFileFinder(root=project_root(cwd), home=home, disabled=off)

    def nested_instructions(self) -> NestedInstructions | None:
        """Return the finder of instruction files in deeper folders and of rules for single files, for one session."""
        finder = self.rule_file_finder()
        return NestedInstructions(self.config.cwd, finder) if finder else None

    def reminders(self, workspace: Workspace, info: ModelInfo) -> list[User]:
        """Return the system reminders of a session's start, fewer for a small model."""
        cwd = self.config.cwd
        if info.small:
            reminders = [instruction_texts.files_reminder(cwd)]
        else:
            today = datetime.now(UTC).astimezone().strftime("%Y-%m-%d")
            branch = instruction_texts.git_branch(project_root(cwd))
            about = instruction_texts.environment_reminder(cwd=cwd, platform=sys.platform, date=today, branch=branch)
            reminders = [about]
        instructions = self.instructions()
        for notice in instructions.notices:
            self.on_notice(notice)
        if (from_files := instructions.to_reminder()) is not None:
            reminders.append(from_files)
        memory = workspace.resources.memory
        if memory is not None and not info.small and (index := memory.index()):
            reminders.append(_memory_reminder(index))
        # `content_blocks` replaces what is not UTF-8 in the names of files: neither a log nor a request can hold it.
        return [structs.replace(one, content=content_blocks(one.content)) for one in reminders]


def new_reminders(reminders: Sequence[User], state: AgentState) -> list[User]:
    """Return the reminders that a resumed conversation does not contain, or contains only with an older text."""
    newest: dict[ReminderKind, str] = {}
    for entry in state.conversation.request_entries:
        if isinstance(entry.body, Compaction):  # `carried`: its text in requests, which keeps earlier reminders
            newest |= {_reminder_kind(one): one.text for one in reminders if one.text in entry.body.carried}
        elif isinstance(entry.body, User) and entry.body.is_reminder:
            newest[_reminder_kind(entry.body)] = entry.body.text
    return [one for one in reminders if newest.get(_reminder_kind(one)) != one.text]


def _reminder_kind(message: User) -> ReminderKind:
    """Return what all versions of a reminder share: its first words, and the instruction files it contains."""
    first_words = message.text.split(maxsplit=_KIND_WORDS)[:_KIND_WORDS]
    return " ".join(first_words), tuple(instruction_texts.instruction_paths([message]))


def _memory_reminder(index: Sequence[tuple[str, str]]) -> User:
    """Return the reminder that lists the memory files, as many as fit: each with its name and first line."""
    lines: list[str] = []
    size = 0
    for name, first_line in index:
        line = f"- {name}: {first_line}" if first_line else f"- {name}"
        size += len(line.encode())
        if size > MAX_INDEX_BYTES:
            lines.append(f"({len(index) - len(lines)} more: memory view)")
            break
        lines.append(line)
    return reminder("\n".join(["Memory files of this project, each with its first line:", *lines]))


def _join(*parts: str) -> str:
    return "\n\n".join(filter(None, parts))
