"""Commands about permissions: the mode, the rules, lasting grants, the sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from agentcli.agent.commands.command import CommandHost, Outcome, SlashCommand, number_in
from agentcli.agent.ops import SetMode
from agentcli.agent.permissions.modes import MODE_TEXTS, MODES, parse_mode
from agentcli.agent.permissions.rule_text import check_rule, parse_rule
from agentcli.agent.permissions.rules import Rule, Rules
from agentcli.errors import UsageError
from agentcli.tools.command import Grants


async def _permissions(host: CommandHost, argument: str) -> Outcome:
    verb, _, rest = argument.partition(" ")
    rules = host.session.state.rules
    match verb:
        case "":
            return await _picked(host)
        case "list":
            return await _shown(host)
        case "mode" if rest.strip():
            return _set_mode(host, rest.strip())
        case "allow" | "ask" | "deny" if rest.strip():
            rule = parse_rule(rest, "session")
            warning = check_rule(rule, host.session.runtime.calls.tools, written=rest)
            rules.of(verb).append(rule)
            text = f"{rule} is {_DONE[verb]} in this session; /permissions forget {rule} takes it back."
            return f"{text} {warning}".rstrip()
        case "forget" | "revoke":
            return await _forget(host, rest.strip())
        case _:
            raise UsageError(
                "Write /permissions, /permissions list, mode MODE, allow RULE, ask RULE, deny RULE, forget RULE "
                "or forget NUMBER."
            )


_DONE = {"allow": "allowed", "ask": "asked about", "deny": "refused"}


async def _picked(host: CommandHost) -> str:
    """Let the person choose another mode, or a rule of theirs to remove."""
    state, granted = host.session.state, await _granted(host)
    rules = [*dict.fromkeys([*granted, *(str(rule) for _, rule in _every(state.rules) if _is_own(rule))])]
    forgetting = [(f"forget {rule}", "in this project" if rule in granted else "") for rule in rules]
    options = [*((mode, MODE_TEXTS[mode][1]) for mode in MODES), *forgetting]
    picked = await host.choose("Mode, or a rule to forget", options, current=MODES.index(state.mode))
    if picked is None:
        return await _shown(host)
    if picked < len(MODES):
        return _set_mode(host, options[picked][0])
    return await _forget(host, rules[picked - len(MODES)])


def _every(rules: Rules) -> list[tuple[str, Rule]]:
    """Return all rules with what each does to calls, in the order in which they win."""
    by_word = {"refused": rules.deny, "asks": rules.ask, "allowed": rules.allow}
    return [(word, rule) for word, of in by_word.items() for rule in of]


def _is_own(rule: Rule) -> bool:
    return rule.source in ("session", "granted")


def _set_mode(host: CommandHost, mode: str) -> str:
    host.session.submit(SetMode(parse_mode(mode)))
    return f"Mode {mode}: {MODE_TEXTS[parse_mode(mode)][1]}."


async def _shown(host: CommandHost) -> str:
    state, granted = host.session.state, await _granted(host)
    lines = [f"Mode {state.mode}: {MODE_TEXTS[state.mode][1]}. Another one: /permissions mode MODE"]
    lines += [*_rows(state.rules, granted)] or ["No rules: what changes something asks."]
    return "\n".join([*lines, *["/permissions forget RULE, or NUMBER, takes one back."] * bool(granted)])


def _rows(rules: Rules, granted: list[str], *, only_own: bool = False) -> Iterator[str]:
    """Yield a line for each rule with its source, then the lasting grants by their numbers."""
    for word, rule in _every(rules):
        is_lasting = (word, rule.source) == ("allowed", "granted") and str(rule) in granted
        if not is_lasting and (_is_own(rule) or not only_own):
            yield f"  {word:<7}  {rule}  ({rule.quote or rule.source or 'settings'})"
    for number, text in enumerate(granted, 1):
        yield f"  {number:>7}  {text}  (granted for good in this project)"


async def _granted(host: CommandHost) -> list[str]:
    grants = host.session.runtime.calls.services.grants
    return [] if grants is None else list(await asyncio.to_thread(grants.list))


async def _forget(host: CommandHost, what: str) -> str:
    """Remove a lasting grant, by its number or as it is written, or a rule of this session. Raises `UsageError`."""
    granted, rules = await _granted(host), host.session.state.rules
    if not what and (rows := [*_rows(rules, granted, only_own=True)]):
        raise UsageError("\n".join(("Write /permissions forget RULE, or the NUMBER of a lasting grant:", *rows)))
    if not what:
        raise UsageError("There is nothing to forget: no rule of this session, and no lasting grant.")
    text = granted[number_in(what, len(granted), "lasting grant")] if what.isdecimal() else str(parse_rule(what))
    same = [rule for _, rule in _every(rules) if str(rule) == text]
    own = [rule for rule in same if _is_own(rule)]
    is_lasting = text in granted or any(rule.source == "granted" for rule in own)
    if is_lasting and (grants := host.session.runtime.calls.services.grants) is not None:
        await asyncio.to_thread(grants.remove, text)
    elif not own:
        why = "comes from the settings: take it out there" if same else "is no rule here: /permissions shows them"
        raise UsageError(f"{text} {why}.")
    has_restricted = any(rule in rules.deny or rule in rules.ask for rule in own)
    for of in (rules.deny, rules.ask, rules.allow):
        of[:] = [rule for rule in of if rule not in own]
    return f"{text} does not hold any more." if has_restricted else f"{text} asks again."


async def _plan(host: CommandHost, argument: str) -> Outcome:
    session = host.session
    if session.state.mode == "plan":
        session.submit(SetMode(session.state.mode_before_plan))
        return f"Plan mode is off; permissions are {session.state.mode} again."
    session.submit(SetMode("plan"))
    return "Plan mode is on: the model looks and plans, nothing is changed. /plan ends it."


async def _sandbox(host: CommandHost, argument: str) -> Outcome:
    workspace = host.session.runtime.calls.workspace
    verb, _, name = argument.partition(" ")
    name = name.strip()
    match verb:
        case "":
            return "\n".join(await asyncio.to_thread(lambda: workspace.facts.description))
        case "host" if name:
            from agentcli.safety.hosts import read_grant

            try:
                read_grant(name)
            except ValueError as error:
                raise UsageError(f"{name!r} cannot be granted: {error}") from error
            workspace.grants += Grants(hosts=(name,))
            return f"Commands of this session may reach {name}."
        case "forget" if name:
            workspace.grants -= Grants(hosts=(name,))
            return f"Commands of this session may not reach {name} any more; a job that runs still may."
        case _:
            raise UsageError("Write /sandbox, /sandbox host NAME or /sandbox forget NAME.")


PERMISSION_COMMANDS = (
    SlashCommand(
        "permissions",
        "show or change the mode, the rules and the grants",
        _permissions,
        "[RULE]",
        ("approvals",),
        forms=("", "list", f"mode {'|'.join(MODES)}", "allow RULE", "ask RULE", "deny RULE", "forget RULE|NUMBER"),
    ),
    SlashCommand(
        "sandbox",
        "show what holds commands; let them reach a host",
        _sandbox,
        "[HOST]",
        forms=("", "host NAME", "forget NAME"),
    ),
    SlashCommand("plan", "turn plan mode on or off", _plan),
)
