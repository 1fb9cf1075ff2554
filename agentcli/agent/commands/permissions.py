"""What may run without asking: the mode, the rules, the grants that stay."""

from __future__ import annotations

import asyncio

from agentcli.agent.commands.command import Command, Desk, Outcome, number_in
from agentcli.agent.events import SetMode
from agentcli.agent.rule_checks import check_rule
from agentcli.agent.rules import Rule, parse_rule
from agentcli.agent.state import AgentState
from agentcli.errors import ToolError, UsageError


async def _permissions(desk: Desk, argument: str) -> Outcome:
    verb, _, rest = argument.partition(" ")
    rules = desk.session.state.rules
    match verb:
        case "":
            return await _shown(desk)
        case "allow" | "ask" | "deny" if rest.strip():
            rule = parse_rule(rest, "session")
            warning = check_rule(rule, verb, desk.session.runtime.calls.tools)
            rules.of(verb).append(rule)
            return f"{rule} is {_DONE[verb]} in this session.{warning and f' {warning}'}"
        case "forget":
            return await _forget(desk, rest.strip())
        case _:
            raise UsageError("Write /permissions, /permissions allow RULE, ask RULE, deny RULE or forget NUMBER.")


_DONE = {"allow": "allowed", "ask": "asked about", "deny": "refused"}


async def _shown(desk: Desk) -> str:
    state = desk.session.state
    granted = await _granted(desk)
    lines = [f"Mode {state.mode}."]
    lines += [f"  refused  {rule}  ({rule.source or 'settings'})" for rule in state.rules.deny]
    lines += [f"  asks     {rule}  ({rule.source or 'settings'})" for rule in state.rules.ask]
    lines += [f"  allowed  {rule}  ({rule.source or 'settings'})" for rule in _not_granted(state)]
    if granted:
        lines.append("Granted for good in this project (/permissions forget NUMBER takes one back):")
        lines += [f"  {number:>2}  {rule}" for number, rule in enumerate(granted, 1)]
    if len(lines) == 1:
        lines.append("No rules: what changes something asks.")
    return "\n".join(lines)


def _not_granted(state: AgentState) -> list[Rule]:
    return [rule for rule in state.rules.allow if rule.source != "granted"]


async def _granted(desk: Desk) -> list[str]:
    grants = desk.session.runtime.calls.grants
    return [] if grants is None else list(await asyncio.to_thread(grants.list))


async def _forget(desk: Desk, number: str) -> str:
    granted = await _granted(desk)
    rule = granted[number_in(number, len(granted), "lasting grant")]
    grants, rules = desk.session.runtime.calls.grants, desk.session.state.rules
    assert grants is not None
    await asyncio.to_thread(grants.remove, rule)
    rules.allow = [other for other in rules.allow if other.source != "granted" or str(other) != rule]
    return f"{rule} asks again."


async def _plan(desk: Desk, argument: str) -> Outcome:
    session = desk.session
    if session.state.mode == "plan":
        session.submit(SetMode(session.state.mode_before_plan))
        return f"Plan mode is off; permissions are {session.state.mode} again."
    session.submit(SetMode("plan"))
    return "Plan mode is on: the model looks and plans, nothing is changed. /plan ends it."


async def _sandbox(desk: Desk, argument: str) -> Outcome:
    sandbox = desk.session.runtime.calls.workspace.sandbox
    verb, _, host = argument.partition(" ")
    host = host.strip()
    match verb:
        case "":
            return "\n".join(await asyncio.to_thread(sandbox.told))
        case "host" if host:
            try:
                sandbox.grant_host(host)
            except ToolError as error:
                raise UsageError(str(error)) from error
            return f"Commands of this session may reach {host}."
        case "forget" if host:
            sandbox.revoke_host(host)
            return f"Commands of this session may not reach {host} any more."
        case _:
            raise UsageError("Write /sandbox, /sandbox host NAME or /sandbox forget NAME.")


PERMISSION_COMMANDS = (
    Command(
        "permissions",
        "show the mode, the rules and the grants; change those of this session",
        _permissions,
        "[allow RULE|ask RULE|deny RULE|forget NUMBER]",
        ("approvals",),
    ),
    Command("sandbox", "show what holds commands; let them reach a host", _sandbox, "[host NAME|forget NAME]"),
    Command("plan", "turn plan mode on or off", _plan),
)
