"""Commands about the session: its status, permissions, jobs and compaction; and the set of all commands."""

import asyncio
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from agentcli.agent.commands.command import CommandHost, CommandSet, Outcome, SlashCommand, Topic, number_in
from agentcli.agent.commands.model import MODEL_COMMANDS, USAGE_COMMANDS
from agentcli.agent.commands.project import MEMORY_COMMANDS, PROJECT_COMMANDS
from agentcli.agent.commands.sessions import SESSION_COMMANDS, UNDO_COMMANDS
from agentcli.agent.ops import SetMode
from agentcli.agent.permissions.modes import MODE_TEXTS, MODES, parse_mode
from agentcli.agent.permissions.rules import Rule, Rules, Verb, check_rule, parse_rule
from agentcli.conversation.entries import STRATEGY_NAMES, Compaction, Pinned, reminder
from agentcli.errors import UsageError, UserError
from agentcli.tools.command import BackgroundJob, Grants
from agentcli.tools.observation import as_shown
from agentcli.version import __version__

PROGRAM = "Program"  # the heading of commands about agentcli itself
MAX_NAME = 15  # characters; longer names do not widen their column
MAX_HINT = 12  # characters; longer hints are not shown in the list
MAX_NAMES = 14  # under one heading of the short help
MAX_JOB_LINES, MAX_JOB_BYTES = 20, 20_000  # shown of the end of a job's output
DRY = "--dry-run"


def conversation_commands() -> CommandSet:
    groups = {
        "Model": (*MODEL_COMMANDS, *USAGE_COMMANDS),
        "Conversation": (*SESSION_COMMANDS, *UNDO_COMMANDS, *COMPACTION_COMMANDS),
        "Project": (*PROJECT_COMMANDS, *MEMORY_COMMANDS),
        "Permissions": PERMISSION_COMMANDS,
        "Jobs": JOB_COMMANDS,
        PROGRAM: STATUS_COMMANDS,
    }
    commands = CommandSet(replace(command, group=group) for group, table in groups.items() for command in table)

    async def help(host: CommandHost, argument: str) -> Outcome:
        if argument == "commands":
            return _all_help(commands)
        found = commands.parse(f"/{argument.removeprefix('/')}") if argument else None
        return _command_help(found[0]) if found else _short_help(commands)

    what, forms = "list the commands, or show the help of one", ("", "commands", "COMMAND")
    commands.add(SlashCommand("help", what, help, "[COMMAND]", aliases=("?",), forms=forms, group=PROGRAM))
    return commands


def _short_help(commands: CommandSet) -> str:
    """Format the names by heading, at most `MAX_NAMES` under each, so that the list fits on a screen."""
    groups, lines = dict.fromkeys(command.group for command in commands), []
    for group in groups:
        names = [f"/{command.name}" for command in commands if command.group == group]
        more = " …" if len(names) > MAX_NAMES else ""
        lines.append(f"{group:<{max(map(len, groups))}}  {' '.join(names[:MAX_NAMES])}{more}")
    return "\n".join((*lines, "", "/help commands explains them all, /help NAME one of them."))


def _all_help(commands: CommandSet) -> str:
    """Format names, hints and help in columns, under headings. Long names and hints do not widen the columns."""
    names = max(len(command.name) for command in commands if len(command.name) <= MAX_NAME) + 1
    lines = []
    for group in dict.fromkeys(command.group for command in commands):
        lines.append(group)
        for command in (command for command in commands if command.group == group):
            is_short = len(command.argument) <= MAX_HINT  # the command's own help shows a long hint
            hint = command.argument if is_short else "[…]" if command.argument.startswith("[") else "…"
            lines.append(f"  {f'/{command.name}':<{names}}  {hint:<{MAX_HINT}}  {command.help}")
    return "\n".join(lines)


def _command_help(command: SlashCommand) -> str:
    forms = command.forms or (command.argument,)
    also = f"\nAlso {', '.join(f'/{alias}' for alias in command.aliases)}." if command.aliases else ""
    return "\n".join([*(f"/{command.name} {form}".rstrip() for form in forms), f"{command.help}{also}"])


async def _run_quit(host: CommandHost, argument: str) -> Outcome:
    host.leave()
    return ""


async def _run_status(host: CommandHost, argument: str) -> Outcome:
    session = host.session
    state, workspace = session.state, session.runtime.calls.workspace
    use = await session.runtime.context_use(state)
    effort = state.model.effort or session.runtime.models.effort
    rows = {
        "agentcli": __version__,
        "session": session.id,
        "model": f"{state.model.name}, effort {effort}" if effort else state.model.name,
        "mode": MODE_TEXTS[state.mode].name,
        "folder": ", ".join(map(str, workspace.facts.roots)),
        "context": f"about {use.request:,} of {use.window:,} tokens ({use.request / use.window:.0%})",
    }
    return "\n".join(f"  {name:<9} {value}" for name, value in rows.items())


async def _describe(topic: Topic, host: CommandHost, argument: str) -> Outcome:
    return await host.describe(topic)


STATUS_COMMANDS = (
    SlashCommand("status", "show the model, the mode, the session and its folders", _run_status),
    SlashCommand("config", "show the settings you changed", partial(_describe, "config"), aliases=("settings",)),
    SlashCommand("doctor", "check this installation", partial(_describe, "doctor"), is_parallel=True),
    SlashCommand("hooks", "list the hooks in use", partial(_describe, "hooks")),
    SlashCommand("quit", "exit; the session is saved", _run_quit, aliases=("exit", "q")),
)


async def _run_tasks(host: CommandHost, which: str) -> Outcome:
    calls = host.session.runtime.calls
    jobs = {job.id: job for job in calls.workspace.sandbox.jobs.list()}
    if not which:
        rows = [*map(_job_row, jobs.values()), *(["  /tasks JOB shows the end of its output."] if jobs else [])]
        subagents = calls.delegates.subagents
        agents = subagents.background_tasks() if subagents is not None else []
        rows += [f"  {id:<7} runs   {' '.join(task.split())}" for id, task in agents]
        rows += ["  /agents show ID shows what a subagent has done."] if agents else []
        return "\n".join(rows) or "Nothing runs in the background."
    job = _job_in(jobs, which)
    try:
        end = await asyncio.to_thread(_read_end, job.output_file)
    except OSError as error:
        raise UserError(f"The output of {job.id} cannot be read: {error.strerror}.") from error
    lines = as_shown(await calls.services.masked(end)).strip("\n").split("\n")[-MAX_JOB_LINES:]
    return "\n".join([_job_row(job), *(f"    {line}" for line in lines), f"  All of it: {job.output_file}"])


def _job_in(jobs: Mapping[str, BackgroundJob], which: str) -> BackgroundJob:
    """Return a job by its id, or by the number in its id. Raises `UserError`."""
    id = f"job_{which}" if which.isdecimal() else which
    if id not in jobs:
        raise UserError(f"There is no job {which}; there is {', '.join(jobs) or 'none'}.")
    return jobs[id]


def _read_end(file: Path) -> str:
    with file.open("rb") as output:
        skipped = max(0, output.seek(0, os.SEEK_END) - MAX_JOB_BYTES)
        output.seek(skipped)
        text = output.read().decode(errors="replace")
    return text.partition("\n")[2] if skipped else text


def _job_row(job: BackgroundJob) -> str:
    state, outcome = "runs", job.outcome
    if outcome is not None:
        exit_code = " (exit 0)" if outcome.exit_code == 0 else ""  # the text names other codes
        state = f"{outcome.text}{exit_code} · {outcome.duration_s:,.0f} s"
    stall = f" ({job.stall})" if job.stall else ""  # why a running job makes no progress
    return f"  {job.id:<7} {state:<5}  {' '.join(job.command.split())}{stall}"


async def _run_stop(host: CommandHost, which: str) -> Outcome:
    workspace = host.session.runtime.calls.workspace
    running = [job.id for job in workspace.running_jobs()]
    if which:
        job = _job_in({job.id: job for job in workspace.sandbox.jobs.list()}, which)
        if job.outcome is not None:
            return f"{job.id} has already ended."
        running = [job.id]
    if not running:
        return "No background jobs are running."
    await asyncio.gather(*map(workspace.sandbox.jobs.stop, running))
    return f"Stopped {', '.join(running)}."


JOB_COMMANDS = (
    SlashCommand(
        "tasks",
        "list background jobs and subagents, or show a job's output",
        _run_tasks,
        "[JOB]",
        aliases=("bashes", "ps", "shells"),
    ),
    SlashCommand("stop", "stop a background job, or all of them", _run_stop, "[JOB]"),
)


async def _run_compact(host: CommandHost, argument: str) -> Outcome:
    session = host.session
    words = argument.split()
    is_dry = DRY in words
    if unknown := next((word for word in words if word.startswith("--") and word != DRY), None):
        raise UsageError(f"/compact has no option {unknown}. Usage: /compact [FOCUS], or /compact {DRY} [FOCUS].")
    compaction = await session.compact(" ".join(word for word in words if word != DRY), is_dry=is_dry)
    if isinstance(compaction, str):
        raise UserError(f"Could not compact: {compaction}.")
    if is_dry:
        return _describe_planned_compaction(compaction)
    cost = f" Cost: ${compaction.cost_usd:.4f}." if compaction.cost_usd else ""
    tokens = f"{compaction.tokens_before:,} → {compaction.tokens_after:,} tokens"
    return f"Compacted: {tokens} ({STRATEGY_NAMES[compaction.strategy]}).{cost}"


def _describe_planned_compaction(plan: Compaction) -> str:
    cut = f"{len(plan.stubs)} recent entries would be cut" if plan.stubs else "recent turns stay complete"
    tokens = f"{plan.tokens_before:,} → {plan.tokens_after:,} tokens ({STRATEGY_NAMES[plan.strategy]}); {cut}."
    carried = plan.carried.replace("<system-reminder>", "").replace("</system-reminder>", "")
    return f"{tokens}\nThe log stays complete. Before the recent turns, the model would read:\n\n{carried}"


async def _run_pin(host: CommandHost, argument: str) -> Outcome:
    session = host.session
    facts = session.state.conversation.pins
    if not argument:
        listed = [f"  {number}  {fact}" for number, fact in enumerate(facts, 1)] or ["No pins."]
        return "\n".join([*listed, "To pin a fact: /pin TEXT. To remove one: /pin remove NUMBER"])
    verb, _, number = argument.partition(" ")
    if verb == "remove":
        fact = facts[number_in(number.strip(), len(facts), "pin")]
        session.append(Pinned(fact, is_removed=True))
        return f"Removed pin: {fact}"
    session.append(Pinned(argument))
    session.state.notes.append(reminder(f"The user pinned this fact for the whole conversation: {argument}"))
    return f"Pinned: {argument}"


COMPACTION_COMMANDS = (
    SlashCommand(
        "compact",
        "summarize older turns to free context",
        _run_compact,
        "[FOCUS]",
        aliases=("summarize", "compress"),
        forms=("", "FOCUS", f"{DRY} [FOCUS]"),
    ),
    SlashCommand("pin", "pin a fact, or list the pinned ones", _run_pin, "[TEXT]", forms=("", "TEXT", "remove NUMBER")),
)


async def _run_permissions(host: CommandHost, argument: str) -> Outcome:
    """List or change the permission mode and the rules of the session."""
    verb, _, rest = argument.partition(" ")
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
            host.session.state.rules.of(verb).append(rule)
            text = f"Rule added for this session: {verb} {rule}. To remove it: /permissions forget {rule}"
            return f"{text} {warning}".rstrip()
        case "forget" | "revoke":
            return await _remove_rule(host, rest.strip())
        case _:
            raise UsageError(
                "Usage: /permissions, or /permissions with list, mode MODE, allow RULE, ask RULE, deny RULE, "
                "forget RULE or forget NUMBER."
            )


async def _choose_mode_or_rule(host: CommandHost) -> str:
    """Let the person choose another mode, or one of their own rules to remove."""
    state, granted = host.session.state, await _granted(host)
    session_rules = [str(rule) for _, rule in _rules_by_effect(state.rules) if _is_own(rule)]
    rules = list(dict.fromkeys([*granted, *session_rules]))
    removals = [(f"forget {rule}", "saved for this project" if rule in granted else "") for rule in rules]
    options = [*((mode, MODE_TEXTS[mode].meaning) for mode in MODES), *removals]
    picked = await host.choose("Permission mode and saved rules", options, current=MODES.index(state.mode))
    if picked is None:
        return await _rules_text(host)
    if picked < len(MODES):
        return _set_mode(host, MODES[picked])
    return await _remove_rule(host, rules[picked - len(MODES)])


def _rules_by_effect(rules: Rules) -> list[tuple[str, Rule]]:
    effects: tuple[Verb, ...] = ("deny", "ask", "allow")
    return [(effect, rule) for effect in effects for rule in rules.of(effect)]


def _is_own(rule: Rule) -> bool:
    """Return True for a rule of this session or a lasting grant, False for one from the settings."""
    return rule.source in ("session", "granted")


def _set_mode(host: CommandHost, mode: str) -> str:
    host.session.submit(SetMode(parse_mode(mode)))
    return f"Mode {mode}: {MODE_TEXTS[parse_mode(mode)].meaning}."


async def _rules_text(host: CommandHost) -> str:
    state, granted = host.session.state, await _granted(host)
    lines = [f"Mode {state.mode}: {MODE_TEXTS[state.mode].meaning}. To change it: /permissions mode MODE"]
    lines += [*_rule_rows(state.rules, granted)] or ["No rules."]
    lines += ["To remove a rule: /permissions forget RULE or NUMBER"] if granted else []
    return "\n".join(lines)


def _rule_rows(rules: Rules, granted: list[str], *, only_own: bool = False) -> Iterator[str]:
    """Yield a line for each rule with its source, and then numbered lines for the grants of this project."""
    for effect, rule in _rules_by_effect(rules):
        has_number = (effect, rule.source) == ("allow", "granted") and str(rule) in granted
        if not has_number and (_is_own(rule) or not only_own):
            yield f"  {effect:<5}  {rule}  ({rule.quote or rule.source or 'settings'})"
    for number, text in enumerate(granted, 1):
        yield f"  {number:>5}  {text}  (always, in this project)"


async def _granted(host: CommandHost) -> list[str]:
    grants = host.session.runtime.calls.services.grants
    return [] if grants is None else list(await asyncio.to_thread(grants.list))


async def _remove_rule(host: CommandHost, what: str) -> str:
    """Remove a lasting grant, by its number or its text, or a rule of this session. Raises `UsageError`."""
    granted, rules = await _granted(host), host.session.state.rules
    if not what and (rows := [*_rule_rows(rules, granted, only_own=True)]):
        raise UsageError("\n".join(("Name a rule: /permissions forget RULE, or the NUMBER of a saved grant:", *rows)))
    if not what:
        raise UsageError("There are no rules to remove: this session has none, and no grants are saved.")
    text = granted[number_in(what, len(granted), "saved grant")] if what.isdecimal() else str(parse_rule(what))
    matching = [rule for _, rule in _rules_by_effect(rules) if str(rule) == text]
    own = [rule for rule in matching if _is_own(rule)]
    is_lasting = text in granted or any(rule.source == "granted" for rule in own)
    if is_lasting and (grants := host.session.runtime.calls.services.grants) is not None:
        await asyncio.to_thread(grants.remove, text)
    elif not own:  # neither this session nor the saved grants have it
        if matching:
            raise UsageError(f"{text} comes from the settings. Remove it there.")
        raise UsageError(f"{text} is not a rule. To list the rules: /permissions.")
    was_restriction = any(rule in rules.deny or rule in rules.ask for rule in own)
    for rules_of_effect in (rules.deny, rules.ask, rules.allow):
        rules_of_effect[:] = [rule for rule in rules_of_effect if rule not in own]
    return f"Rule removed: {text}." if was_restriction else f"Rule removed: {text} will ask again."


async def _run_plan(host: CommandHost, argument: str) -> Outcome:
    session = host.session
    if session.state.mode == "plan":
        session.submit(SetMode(session.state.mode_before_plan))
        return f"Plan mode is off. The permission mode is {session.state.mode} again."
    session.submit(SetMode("plan"))
    return "Plan mode is on: the model reads and plans but changes nothing. To end it: /plan"


async def _run_sandbox(host: CommandHost, argument: str) -> Outcome:
    """Describe the sandbox, or give this session's commands access to a host, or withdraw it."""
    workspace = host.session.runtime.calls.workspace
    verb, _, name = argument.partition(" ")
    name = name.strip()
    match verb:
        case "":
            return "\n".join(await asyncio.to_thread(lambda: workspace.facts.description))
        case "host" if name:
            from agentcli.safety.hosts import read_grant

            try:
                grant = read_grant(name)
            except ValueError as error:
                raise UsageError(f"Could not allow {name!r}: {error}") from error
            workspace.grants += Grants(hosts=(name,))
            needs_hint = grant.is_this_machine and not grant.port  # servers here often have ports of their own
            ports = f" on ports 80 and 443. For another port: /sandbox host {name}:PORT" if needs_hint else "."
            return f"Commands in this session can now reach {name}{ports}"
        case "forget" if name:
            workspace.grants -= Grants(hosts=(name,))
            return f"New commands can no longer reach {name}. Jobs that are already running still can."
        case _:
            raise UsageError("Usage: /sandbox, /sandbox host NAME or /sandbox forget NAME.")


PERMISSION_COMMANDS = (
    SlashCommand(
        "permissions",
        "show or change the permission mode and rules",
        _run_permissions,
        "[RULE]",
        aliases=("approvals",),
        forms=("", "list", f"mode {'|'.join(MODES)}", "allow RULE", "ask RULE", "deny RULE", "forget RULE|NUMBER"),
    ),
    SlashCommand(
        "sandbox",
        "show what confines commands, or let them reach a host",
        _run_sandbox,
        "[HOST]",
        forms=("", "host NAME", "forget NAME"),
    ),
    SlashCommand("plan", "turn plan mode on or off", _run_plan),
)
