"""Commands about the session: its status, background jobs and compaction; and the table of all commands."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

from agentcli.agent.commands.command import CommandHost, CommandSet, Outcome, SlashCommand, Topic, number_in
from agentcli.agent.commands.model import MODEL_COMMANDS, USAGE_COMMANDS
from agentcli.agent.commands.permissions import PERMISSION_COMMANDS
from agentcli.agent.commands.project import MEMORY_COMMANDS, PROJECT_COMMANDS
from agentcli.agent.commands.sessions import SESSION_COMMANDS, UNDO_COMMANDS
from agentcli.conversation.entries import Compaction, Pinned, reminder
from agentcli.errors import UsageError, UserError
from agentcli.tools.command import BackgroundJob
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
        return _explained(found[0]) if found else _listed(commands)

    commands.add(SlashCommand("help", "show the commands, or one of them", help, "[COMMAND]", ("?",), group=PROGRAM))
    return commands


def _listed(commands: CommandSet) -> str:
    """Format names, arguments and help in columns, under headings. A user's long name or hint widens no column."""
    names = max(len(c.name) for c in commands if len(c.name) <= MAX_WIDTH) + 1
    hints = max(len(c.argument) for c in commands if len(c.argument) <= MAX_WIDTH)
    lines = []
    for group in dict.fromkeys(command.group for command in commands):
        lines.append(group)
        lines += [f"  {f'/{c.name}':<{names}}  {c.argument:<{hints}}  {c.help}" for c in commands if c.group == group]
    return "\n".join(lines)


def _explained(command: SlashCommand) -> str:
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
    jobs = host.session.runtime.calls.workspace.sandbox.jobs.list()
    return "\n".join(map(_row, jobs)) or "No command runs in the background."


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
        ("summarize", "compress"),
        forms=("", "FOCUS", f"{DRY} [FOCUS]"),
    ),
    SlashCommand("pin", "keep a fact in sight, or show them", _pin, "[TEXT]", forms=("", "TEXT", "remove NUMBER")),
)
