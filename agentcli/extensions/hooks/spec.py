"""Defines hooks and their kinds, and reads them from settings."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, get_args

import msgspec

from agentcli.agent.interfaces import EventName
from agentcli.agent.permissions.rules import ALIASES, parse_rule
from agentcli.errors import UsageError
from agentcli.llm.addresses import is_address
from agentcli.llm.http import redacted_address
from agentcli.tables import read_table

# `unfired`: events that agentcli accepts but never fires; `kinds`: the requirements of each type of hook.
_TABLE: dict[str, Any] = read_table(__file__, "events")
EVENTS: tuple[str, ...] = (*get_args(EventName), *_TABLE["unfired"])
OnError = Literal["allow", "deny", "ask"]
# Arguments of tools with which the pattern of a hook's `condition` is compared; a call has one of them.
_PATTERN_ARGUMENTS = ("command", "path", "url", "agent", "name")
# Variables that are replaced even in `args`, which no shell reads.
_FOLDER_VARIABLE = re.compile(r"\$\{(?:CLAUDE_PROJECT_DIR|CLAUDE_PLUGIN_ROOT|CLAUDE_PLUGIN_DATA)\}")


class HookOptions(msgspec.Struct, rename="camel"):
    """The optional keys of all types of hooks."""

    args: tuple[str, ...] = ()
    headers: dict[str, str] = {}
    allowed_env_vars: tuple[str, ...] = ()
    input: dict[str, Any] = {}
    model: str = ""
    continue_on_block: bool = False


class HookSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A hook for an event. If the event is about a call, `matcher` and `condition` select the calls.

    `handler` is the hook's table in the settings, with its `type`. `matcher` is a regular expression for the tool's
    name, `condition` a permission rule such as `bash(git *)`; if empty, they match all calls.
    """

    event: str
    handler: dict[str, Any]
    matcher: str = ""
    timeout_s: Annotated[float, msgspec.Meta(gt=0)]
    on_error: OnError = "allow"
    condition: str = ""
    source: str = ""
    environment: dict[str, str] = {}  # for a plugin's hook: its variables for the plugin's folders

    @property
    def title(self) -> str:
        """The text that identifies the hook to a person."""
        match self.handler:
            case {"type": "http", "url": url}:
                variables = "".join(f" ${name}" for name in self.handler.get("allowedEnvVars", ()))
                return f"POST {redacted_address(url)}{variables}"
            case {"type": "mcp_tool", "server": server, "tool": tool}:
                return f"mcp__{server}__{tool}"
            case {"type": "prompt" | "agent" as kind, "prompt": prompt}:
                return f"{kind}: {' '.join(prompt.split())[:60]}"
        return self.shell_command

    @property
    def shell_command(self) -> str:
        """The command of a hook of type `command`, as the shell gets it; empty for hooks of other types."""
        match self.handler:
            # Quoted, because a shell must not interpret the arguments; a variable within '…' becomes '…'"${NAME}"'…'.
            case {"type": "command", "command": command, "args": args}:
                words = map(shlex.quote, (command, *args))
                return " ".join(_FOLDER_VARIABLE.sub(r"""'"\g<0>"'""", word) for word in words)
            case {"type": "command", "command": command}:
                return str(command)
        return ""

    @property
    def expanded_command(self) -> str:
        """The shell command with its plugin's folders filled in."""
        command = self.shell_command
        for name, value in self.environment.items():
            command = command.replace(f"${{{name}}}", value)
        return command

    @property
    def note(self) -> str:
        """A sentence about a hook that never runs; empty for all others."""
        return f"agentcli never fires {self.event}: this hook does not run" if self.event in _TABLE["unfired"] else ""

    def is_for(self, event: str, subject: str, input: Mapping[str, Any]) -> bool:
        """Return True if the hook applies to an event. If the `subject` is a tool, any of its names may match."""
        names = (subject, *(theirs for theirs, ours in ALIASES.items() if ours == subject))
        is_matching = not self.matcher or any(re.fullmatch(self.matcher, name) for name in names)
        if self.event != event or not is_matching:
            return False
        if not self.condition:
            return True
        rule = parse_rule(self.condition)
        value = next((str(input[name]) for name in _PATTERN_ARGUMENTS if name in input), "")
        return rule.is_about(subject) and (not rule.pattern or fnmatchcase(value, rule.pattern))


def read_hooks(
    table: Any, source: str, report: Callable[[str], object], environment: Mapping[str, str] = {}
) -> Iterator[HookSpec]:
    """Yield the hooks of a `hooks` table, with their `environment`; `report` gets a sentence on each unusable part."""
    if not isinstance(table, Mapping):
        report(f"{source}: hooks is not a table of events.")
        return
    for event, groups in table.items():
        if event not in EVENTS:
            report(f"{source}: hooks.{event} is skipped: unknown event.")
            continue
        for group in groups if isinstance(groups, list | tuple) else [groups]:
            group = group if isinstance(group, Mapping) else {}  # reported below as a hook without a command
            matcher = str(group.get("matcher") or "")
            for hook in group.get("hooks") or [group]:  # a group may also be a single hook itself
                try:
                    spec = _read_hook(event, "" if matcher == "*" else matcher, hook, source)
                    yield msgspec.structs.replace(spec, environment=dict(environment))
                except (ValueError, UsageError) as error:
                    report(f"{source}: hooks.{event}: {error}.")


def _read_hook(event: str, matcher: str, hook: Any, source: str) -> HookSpec:
    """Return the hook that a table of the settings defines. Raises `ValueError` with the reason if it is skipped."""
    # A value that is not a table is reported below as a hook without a command.
    hook = {"type": "command", **hook} if isinstance(hook, Mapping) else {"type": "command"}
    kind, condition = str(hook["type"]), str(hook.get("if") or "")
    if (requirements := _TABLE["kinds"].get(kind)) is None:
        raise ValueError(f"a hook of type {kind!r} is skipped; the types are {', '.join(_TABLE['kinds'])}")
    for name in requirements["required"]:
        if not isinstance(hook.get(name), str) or not hook[name].strip():
            raise ValueError(f"a hook without a {name} is skipped")
    if event in requirements.get("not_for", ()) or event not in requirements.get("events", EVENTS):
        raise ValueError(f"a hook of type {kind} is skipped: this event cannot have one")
    if kind == "http" and not is_address(hook["url"]):
        raise ValueError(f"it is skipped ({redacted_address(hook['url'])!r} is not an http(s) address)")
    on_failure = hook.get("onFailure", "allow")  # another agent's key, with other words for the same values
    on_failure = {"continue": "allow", "block": "deny"}.get(str(on_failure), on_failure)
    values = {"event": event, "handler": hook, "matcher": matcher, "condition": condition, "source": source}
    values["on_error"] = hook.get("onError", hook.get("on_error", on_failure))
    values["timeout_s"] = hook.get("timeout", requirements["timeout"])
    try:  # the results of the first three are not used: they raise if a value is invalid
        re.compile(matcher)
        if condition:
            parse_rule(condition)
        msgspec.convert(hook, HookOptions)
        return msgspec.convert(values, HookSpec)
    except (re.error, UsageError, msgspec.ValidationError) as error:
        raise ValueError(f"it is skipped ({error})") from error
