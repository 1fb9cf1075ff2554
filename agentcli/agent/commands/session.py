"""Commands about the session: its status, permissions, jobs and compaction; and the table of all commands."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from agentcli.agent.commands.command import CommandHost, CommandSet, Outcome, SlashCommand, Topic, number_in
from agentcli.agent.commands.model import MODEL_COMMANDS, USAGE_COMMANDS
from agentcli.agent.commands.project import MEMORY_COMMANDS, PROJECT_COMMANDS
from agentcli.agent.commands.sessions import SESSION_COMMANDS, UNDO_COMMANDS
from agentcli.agent.ops import SetMode
from agentcli.agent.permissions.modes import MODE_TEXTS, MODES, parse_mode
from agentcli.agent.permissions.rules import Rule, Rules, check_rule, parse_rule
from agentcli.conversation.entries import Compaction, Pinned, reminder
from agentcli.errors import UsageError, UserError
from agentcli.tools.command import BackgroundJob, Grants
from agentcli.version import __version__

PROGRAM = "Program"
MAX_WIDTH = 12  # characters of a name or hint that count for the width of its column
DRY = "--dry-run"


def conversation_commands() -> CommandSet:
    groups = {
        "Model": (*MODEL_COMMANDS, *USAGE_COMMANDS),
        "Conversation": (*SESSION_COMMANDS, *UNDO_COMMANDS, *COMPACTION_COMMANDS),
        "Project": (*PROJECT_COMMANDS, *MEMORY_COMMANDS),
        "Permissions": PERMISSION_COMMANDS,
        "Jobs": JOB_COMMANDS,
        PROGRAM: (*STATUS_COMMANDS, SlashCommand("quit", "leave; everything is stored", _quit, aliases=("exit", "q"))),
    }
    commands = CommandSet(replace(command, group=group) for group, table in groups.items() for command in table)

    async def help(host: CommandHost, argument: str) -> Outcome:
        found = commands.parse(f"/{argument.removeprefix('/')}") if argument else None
        return _command_help(found[0]) if found else _all_help(commands)

    commands.add(
        SlashCommand("help", "show the commands, or one of them", help, "[COMMAND]", aliases=("?",), group=PROGRAM)
    )
    return commands


def _all_help(commands: CommandSet) -> str:
    """Format names, arguments and help in columns, under headings. A user's long name or hint widens no column."""
    names = max(len(c.name) for c in commands if len(c.name) <= MAX_WIDTH) + 1
    hints = max(len(c.argument) for c in commands if len(c.argument) <= MAX_WIDTH)
    lines = []
    for group in dict.fromkeys(command.group for command in commands):
        lines.append(group)
        lines += [f"  {f'/{c.name}':<{names}}  {c.argument:<{hints}}  {c.help}" for c in commands if c.group == group]
    return "\n".join(lines)


def _command_help(command: SlashCommand) -> str:
    forms = command.forms or (command.argument,)
    also = f"\nAlso {', '.join(f'/{alias}' for alias in command.aliases)}." if command.aliases else ""
    return "\n".join([*(f"/{command.name} {form}".rstrip() for form in forms), f"{command.help}{also}"])


async def _quit(host: CommandHost, argument: str) -> Outcome:
    host.leave()
    return ""


async def _status(host: CommandHost, argument: str) -> Outcome:
    session = host.session
    state, workspace = session.state, session.runtime.calls.workspace
    use = await session.runtime.context_use(state)
    effort = state.model.effort or session.runtime.models.effort
    rows = {
        "agentcli": __version__,
        "session": session.id,
        "model": f"{state.model.name}, effort {effort}" if effort else state.model.name,
        "mode": state.mode,
        "folder": ", ".join(map(str, workspace.facts.roots)),
        "context": f"about {use.request:,} of {use.window:,} tokens ({use.request / use.window:.0%})",
    }
    return "\n".join(f"  {name:<9} {value}" for name, value in rows.items())


async def _describe(topic: Topic, host: CommandHost, argument: str) -> Outcome:
    return await host.describe(topic)


STATUS_COMMANDS = (
    SlashCommand("status", "show the model, the mode, the session and its folder", _status),
    SlashCommand("config", "show the settings you changed", partial(_describe, "config"), aliases=("settings",)),
    SlashCommand("doctor", "check this installation", partial(_describe, "doctor"), is_aside=True),
)


async def _tasks(host: CommandHost, argument: str) -> Outcome:
    rows = map(_row, host.session.runtime.calls.workspace.sandbox.jobs.list())
    return "\n".join(rows) or "No command runs in the background."


def _row(job: BackgroundJob) -> str:
    why = f" ({job.stall})" if job.stall else ""
    return f"  {job.id:<7} {'runs ' if job.is_running else 'ended'}  {' '.join(job.command.split())}{why}"


async def _stop(host: CommandHost, which: str) -> Outcome:
    workspace = host.session.runtime.calls.workspace
    running = [job.id for job in workspace.running_jobs()]
    if which:
        running = [f"job_{which}" if which.isdecimal() else which]
    if not running:
        return "No command runs in the background."
    await asyncio.gather(*map(workspace.sandbox.jobs.stop, running))
    return f"Ended {', '.join(running)}."


JOB_COMMANDS = (
    SlashCommand("tasks", "list the commands in the background", _tasks, aliases=("bashes", "ps", "shells")),
    SlashCommand("stop", "end a command in the background, or all of them", _stop, "[JOB]"),
)


async def _compact(host: CommandHost, argument: str) -> Outcome:
    session = host.session
    words = argument.split()
    is_dry = DRY in words
    if unknown := next((word for word in words if word.startswith("--") and word != DRY), None):
        raise UsageError(f"/compact takes no {unknown}: /compact [FOCUS], /compact {DRY} [FOCUS].")
    compaction = await session.compact(" ".join(word for word in words if word != DRY), is_dry=is_dry)
    if isinstance(compaction, str):
        raise UserError(f"Nothing was compacted: {compaction}.")
    if is_dry:
        return _plan_text(compaction)
    cost = f" It cost ${compaction.cost_usd:.4f}." if compaction.cost_usd else ""
    tokens = f"{compaction.tokens_before:,} → {compaction.tokens_after:,} tokens"
    return f"Compacted: {tokens} ({compaction.strategy}).{cost}"


def _plan_text(plan: Compaction) -> str:
    cut = f"{len(plan.stubs)} of the newest entries would be cut" if plan.stubs else "the newest turns stay whole"
    cost = "It would cost nothing."
    if plan.cost_usd:
        cost = f"A model would summarise it, for ${plan.cost_usd:.4f} at most; without one it is as above."
    elif plan.cost_usd is None:
        cost = "A model would summarise it; its price is not known."
    tokens = f"{plan.tokens_before:,} → {plan.tokens_after:,} tokens ({plan.strategy}); {cut}. {cost}"
    return f"{tokens}\nThe log keeps all of it. The model would read, ahead of the newest turns:\n\n{plan.carried}"


async def _pin(host: CommandHost, argument: str) -> Outcome:
    session = host.session
    facts = session.state.conversation.pins
    if not argument:
        listed = [f"  {number}  {fact}" for number, fact in enumerate(facts, 1)] or ["No pins."]
        return "\n".join([*listed, "Another one: /pin TEXT; /pin remove NUMBER takes one out."])
    verb, _, rest = argument.partition(" ")
    if verb == "remove":
        fact = facts[number_in(rest.strip(), len(facts), "pin")]
        session.append(Pinned(fact, is_removed=True))
        return f"No longer pinned: {fact}"
    session.append(Pinned(argument))
    session.state.notes.append(reminder(f"The user pinned this for the whole conversation: {argument}"))
    return f"Pinned: {argument}"


COMPACTION_COMMANDS = (
    SlashCommand(
        "compact",
        "shorten what the model reads of this conversation",
        _compact,
        "[FOCUS]",
        aliases=("summarize", "compress"),
        forms=("", "FOCUS", f"{DRY} [FOCUS]"),
    ),
    SlashCommand("pin", "keep a fact in sight, or show them", _pin, "[TEXT]", forms=("", "TEXT", "remove NUMBER")),
)


async def _permissions(host: CommandHost, argument: str) -> Outcome:
    verb, _, rest = argument.partition(" ")
    rules = host.session.state.rules
    match verb:
        case "":
            return await _choose_mode_or_rule(host)
        case "list":
            return await _rules_text(host)
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


async def _choose_mode_or_rule(host: CommandHost) -> str:
    """Let the person choose another mode, or a rule of theirs to remove."""
    state, granted = host.session.state, await _granted(host)
    rules = [*dict.fromkeys([*granted, *(str(rule) for _, rule in _rules_by_effect(state.rules) if _is_own(rule))])]
    forgetting = [(f"forget {rule}", "in this project" if rule in granted else "") for rule in rules]
    options = [*((mode, MODE_TEXTS[mode][1]) for mode in MODES), *forgetting]
    picked = await host.choose("Mode, or a rule to forget", options, current=MODES.index(state.mode))
    if picked is None:
        return await _rules_text(host)
    if picked < len(MODES):
        return _set_mode(host, options[picked][0])
    return await _forget(host, rules[picked - len(MODES)])


def _rules_by_effect(rules: Rules) -> list[tuple[str, Rule]]:
    """Return all rules with what each does to calls, in the order in which they win."""
    by_effect = (("refused", rules.deny), ("asks", rules.ask), ("allowed", rules.allow))
    return [(effect, rule) for effect, same in by_effect for rule in same]


def _is_own(rule: Rule) -> bool:
    return rule.source in ("session", "granted")


def _set_mode(host: CommandHost, mode: str) -> str:
    host.session.submit(SetMode(parse_mode(mode)))
    return f"Mode {mode}: {MODE_TEXTS[parse_mode(mode)][1]}."


async def _rules_text(host: CommandHost) -> str:
    state, granted = host.session.state, await _granted(host)
    lines = [f"Mode {state.mode}: {MODE_TEXTS[state.mode][1]}. Another one: /permissions mode MODE"]
    lines += [*_rule_rows(state.rules, granted)] or ["No rules: what changes something asks."]
    return "\n".join([*lines, *["/permissions forget RULE, or NUMBER, takes one back."] * bool(granted)])


def _rule_rows(rules: Rules, granted: list[str], *, only_own: bool = False) -> Iterator[str]:
    """Yield a line for each rule with its source, then the lasting grants by their numbers."""
    for word, rule in _rules_by_effect(rules):
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
    if not what and (rows := [*_rule_rows(rules, granted, only_own=True)]):
        raise UsageError("\n".join(("Write /permissions forget RULE, or the NUMBER of a lasting grant:", *rows)))
    if not what:
        raise UsageError("There is nothing to forget: no rule of this session, and no lasting grant.")
    text = granted[number_in(what, len(granted), "lasting grant")] if what.isdecimal() else str(parse_rule(what))
    same = [rule for _, rule in _rules_by_effect(rules) if str(rule) == text]
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
        aliases=("approvals",),
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
