"""Reads definitions of subagents: Markdown files with a name, a description, tools, a model and the prompt."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, convert, structs

from agentcli.agent.permissions.rules import ALIASES
from agentcli.extensions.programs import Plugins
from agentcli.extensions.skills.find import find_named, format_list, read_cached, stamp_of
from agentcli.extensions.skills.skill import one_line, split_frontmatter, tool_rules
from agentcli.settings.files import home_of, markdown_files, read_small_file
from agentcli.settings.trust import AGENT_FOLDERS, definition_folders

BUILT_IN = Path(__file__).with_name("builtin")
DEFAULT = "general"
_MAX_DESCRIPTION_CHARS = 200
_HEAD = "# Agents\nFor create_subagent, besides explore, review and general:\n"


class AgentDefinition(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A kind of subagent. It has only these `tools` (None: all), without `denied_tools`.

    An empty `model` means the parent's, and a `max_turns` of 0 that of the settings.
    """

    name: str
    description: str
    prompt: str
    source: str = "user"
    tools: tuple[str, ...] | None = None
    denied_tools: tuple[str, ...] = ()
    model: str = ""
    max_turns: Annotated[int, Meta(ge=0)] = 0


def _read_definition(path: str, source: str) -> AgentDefinition:
    file = Path(path)
    keys, body = split_frontmatter(read_small_file(file))
    if not body.strip():
        raise ValueError("it has no prompt")
    keys |= {
        "name": one_line(keys, "name") or file.stem,
        "description": one_line(keys, "description") or " ".join(body.strip().splitlines()[0].split()),
        "prompt": body.strip(),
    }
    return definition_from(keys, source)


def definition_from(keys: Mapping[str, Any], source: str) -> AgentDefinition:
    """Return the definition in keys of Claude Code's format. Raises `ValueError` if they are invalid."""
    prompt = str(keys.get("prompt", ""))
    if skills := tool_rules(keys.get("skills")):
        prompt += f"\n\nBefore you begin, activate these skills with the tool `skill`: {', '.join(skills)}."
    own = {
        "prompt": prompt, "source": source, "tools": tool_names(keys.get("tools")),
        "denied_tools": tool_names(keys.get("disallowedTools")) or (), "model": one_line(dict(keys), "model"),
        "max_turns": keys.get("maxTurns") or 0,
    }  # fmt: skip
    return convert({**keys, **own}, AgentDefinition)


def tool_names(value: Any) -> tuple[str, ...] | None:
    """Return our names of tools, without the patterns in parentheses that rules have; None for all tools."""
    if not value or value in ("*", ["*"]):
        return None
    names = (rule.partition("(")[0].strip() for rule in tool_rules(value))
    return tuple(ALIASES.get(name, name) for name in names)


class Agents(Struct, kw_only=True, dict=True):
    """The kinds of subagents that settings and trust allow, searched for when they are first needed."""

    plugins: Plugins
    added: Mapping[str, AgentDefinition]  # the caller's own

    @cached_property
    def folders(self) -> list[tuple[Path, str]]:
        """The folders of the project's and the person's definitions with their sources, in the order of precedence."""
        if self.plugins.is_bare:  # the caller wants nothing that it has not named itself
            return []
        config = self.plugins.config
        project_folders = definition_folders(config.cwd, AGENT_FOLDERS) if config.project.is_allowed else []
        user_folders = (config.paths.config / "agents", home_of(config.environment) / ".claude/agents")
        folders = [(folder, "project") for folder in project_folders]
        return folders + [(folder, "user") for folder in user_folders if folder.is_dir()]

    @cached_property
    def definitions(self) -> dict[str, AgentDefinition]:
        """The definitions by name; the first of a name applies. A file without a valid definition is reported."""
        definitions = dict(self.added)
        for folder, source in (*self.folders, (BUILT_IN, "built in")):
            for definition in self._read_all(markdown_files(folder), source, folder):
                definitions.setdefault(definition.name, definition)
        for plugin in self.plugins.active:
            for definition in self._read_all(list(plugin.agents.values()), "plugin", plugin.root):
                name, prompt = f"{plugin.name}:{definition.name}", plugin.fill(definition.prompt)
                definitions.setdefault(name, structs.replace(definition, name=name, prompt=prompt))
        return definitions

    def _read_all(self, files: Sequence[Path], source: str, folder: Path) -> Iterator[AgentDefinition]:
        """Yield the definitions in `files`, which are cached by their `folder`; a file that has none is reported."""
        stamps = {}
        for file in files:
            with suppress(OSError):  # a file that has just been deleted
                stamps[os.fspath(file)] = stamp_of(file.stat())
        read, cache = partial(_read_definition, source=source), self.plugins.config.paths.cache / "agents"
        for path, result in read_cached(stamps, AgentDefinition, read, cache=cache, folder=folder).items():
            if result.value is None:
                self.plugins.on_notice(f"{path} does not define an agent: {result.problem}.")
            else:
                yield result.value

    def find(self, name: str) -> AgentDefinition | None:
        return find_named(self.definitions, name)

    def listing(self, window: int) -> str:
        """List the agents that are not built in for a model, in half of the tokens that the list of skills may use."""
        if not (self.folders or self.added or self.plugins.active):  # `definitions` would read files
            return ""
        own = {kind.name: kind.description for kind in self.definitions.values() if kind.source != "built in"}
        max_tokens = int(window * self.plugins.config.settings.skills.share / 2)
        return format_list(own, max_tokens, head=_HEAD, more="/agents lists them", max_chars=_MAX_DESCRIPTION_CHARS)
