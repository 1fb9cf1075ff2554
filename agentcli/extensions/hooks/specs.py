"""Reads which hooks there are from settings, leniently, and tells which of them an event is for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

from msgspec import Struct

from agentcli.agent.hooks import EventName
from agentcli.agent.permissions.rules import parse_rule
from agentcli.errors import UsageError
from agentcli.extensions.hooks.field_shape import names_of

TIME_LIMIT_S = 60.0

EVENTS: tuple[EventName, ...] = get_args(EventName)
OnError = Literal["allow", "deny", "ask"]


class HookSpec(Struct, frozen=True):
    """One command for one event. `matcher` is a regular expression over the names of tools; empty means all.

    `condition` is a permission rule that the call has to meet, too. `on_error` says what counts where the command
    cannot be run to its end. `source` is the file it stands in.
    """

    event: EventName
    command: str
    matcher: str = ""
    timeout_s: float = TIME_LIMIT_S
    on_error: OnError = "allow"
    condition: str = ""
    source: str = ""

    def is_for(self, subject: str, input: Mapping[str, Any] | None) -> bool:
        """Whether it is for a tool, by any of its names, and for that input; for other events what they are about."""
        names = names_of(subject)
        if self.matcher and not any(re.fullmatch(self.matcher, name) for name in names):
            return False
        return not self.condition or _meets(self.condition, subject, input or {})


def read_hooks(table: Any, source: str, problems: list[str]) -> Iterator[HookSpec]:
    """The hooks of a `hooks` table; `problems` gets a sentence on each part that cannot be used."""
    if not isinstance(table, Mapping):
        problems.append(f"{source}: hooks is no table of events.")
        return
    for event, groups in table.items():
        if event not in EVENTS:
            problems.append(f"{source}: hooks.{event} is left out: no such event is known.")
            continue
        for group in groups if isinstance(groups, list | tuple) else [groups]:
            if not isinstance(group, Mapping):
                problems.append(f"{source}: hooks.{event} holds something that is no table.")
                continue
            matcher = str(group.get("matcher") or "")
            for hook in group.get("hooks") or [group]:
                spec = _read(event, "" if matcher == "*" else matcher, hook, source)
                if isinstance(spec, HookSpec):
                    yield spec
                else:
                    problems.append(f"{source}: hooks.{event}: {spec}.")


def _read(event: EventName, matcher: str, hook: Any, source: str) -> HookSpec | str:
    """The hook, or why it is left out."""
    if not isinstance(hook, Mapping) or not isinstance(hook.get("command"), str) or not hook["command"].strip():
        return "a hook without a command is left out"
    if (kind := hook.get("type", "command")) != "command":
        return f"a hook of the type {kind!r} is left out, only commands are run"
    timeout, on_error = hook.get("timeout", TIME_LIMIT_S), hook.get("onError", hook.get("on_error", "allow"))
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or timeout <= 0:
        return f"timeout {timeout!r} is no number of seconds"
    if on_error not in get_args(OnError):
        return f"onError {on_error!r} is none of {', '.join(get_args(OnError))}"
    try:
        re.compile(matcher)
        condition = str(hook.get("if") or "")
        if condition:
            parse_rule(condition)
    except (re.error, UsageError) as error:
        return f"it is left out ({error})"
    return HookSpec(event, hook["command"], matcher, float(timeout), on_error, condition, source)


def _meets(condition: str, tool: str, input: Mapping[str, Any]) -> bool:
    rule = parse_rule(condition)
    if not rule.names(tool):
        return False
    given = next((str(input[key]) for key in ("command", "path", "url", "agent", "name") if key in input), "")
    return not rule.pattern or fnmatchcase(given, rule.pattern)
