"""Slash commands of plugins, skills and subagents; each skill and each kind of subagent is a command, too."""

import asyncio
from collections.abc import Iterable
from functools import partial

from agentcli.agent.commands.command import SKILLS, AsPrompt, CommandHost, CommandSet, Outcome, SlashCommand
from agentcli.agent.ops import Interrupt, Steer, TakeBack
from agentcli.agent.session import Session
from agentcli.conversation.history import brief, shorten, transcript_lines
from agentcli.errors import UsageError, UserError
from agentcli.extensions.programs import Plugins
from agentcli.extensions.skills.activation import SessionSkills, skills_of
from agentcli.extensions.skills.find import Catalog
from agentcli.extensions.subagents.definitions import AgentDefinition
from agentcli.extensions.subagents.running import MAX_RUNNING, AgentRun, Subagents
from agentcli.llm.messages import Text


def add_plugin_command(commands: CommandSet, plugins: Plugins) -> None:
    help, forms = "show the plugins, turn one on or off", ("", "enable NAME", "disable NAME")
    run = partial(_plugin, plugins)
    commands.add(SlashCommand("plugin", help, run, "[enable|disable NAME]", is_parallel=True, forms=forms))


async def _plugin(plugins: Plugins, host: CommandHost, argument: str) -> Outcome:
    from agentcli.extensions.plugins.store import PluginStore

    store = PluginStore(plugins.config.paths)
    if not argument:
        installed = store.index.plugins.items()
        rows = [f"{'●' if entry.is_enabled else '○'} {name}@{entry.marketplace}" for name, entry in installed]
        return "\n".join(rows) or "No plugins are installed. To install one: agentcli plugin install NAME"
    verb, _, name = argument.partition(" ")
    if verb not in ("enable", "disable") or not name:
        raise UsageError("Usage: /plugin, or /plugin enable NAME or disable NAME.")
    await asyncio.to_thread(store.switch, name, is_enabled=verb == "enable")
    return f"{name} is {'on' if verb == 'enable' else 'off'} in new sessions. This one stays as it is."


# Skills

_MAX_HELP_CHARS = 64  # so that a line of `/help commands` fits into 100 columns
_SKILL_MARKS = {"person": "● on", "model": "● until the turn ends", "": "○"}


def add_skill_commands(commands: CommandSet, catalog: Catalog) -> None:
    """Add `/skills` and a command for each skill, called `/SOURCE:NAME` if its name is taken."""
    help, forms = "show the skills, turn one on or off", ("", "NAME", "off NAME", "off")
    commands.add(SlashCommand("skills", help, _skills, "[NAME]", group=SKILLS, forms=forms))
    for skill in (*catalog, *catalog.shadowed):
        name = f"{skill.source}:{skill.name}" if skill.name in commands.names else skill.name
        if skill.for_person and name not in commands.names:
            help, run = brief(skill.description, _MAX_HELP_CHARS), partial(_use_skill, name)
            commands.add(SlashCommand(name, help, run, skill.argument_hint or "[TEXT]", group=SKILLS))


async def _use_skill(name: str, host: CommandHost, argument: str) -> Outcome:
    await _activate_skill(host, name, argument)
    return AsPrompt(argument or f"Follow the skill {name}.")


async def _activate_skill(host: CommandHost, name: str, argument: str = "") -> None:
    """Activate a skill. If the person has activated it before, it starts again with the new argument in its text."""
    skills = skills_of(host.session.runtime.calls)
    skill = skills.registry.get(name)
    if any(active.skill.name == skill.name and active.by == "person" for active in skills.registry.active):
        skills.end(skill.name)
    await skills.activate(name, request=argument)


async def _skills(host: CommandHost, argument: str) -> Outcome:
    skills = skills_of(host.session.runtime.calls)
    word, _, name = argument.partition(" ")
    if word == "off":
        return _turn_off(skills, name.strip())
    if argument:
        return await _turn_on(host, argument)
    catalog = skills.registry.catalog
    activated_by = {active.skill.name: active.by for active in skills.registry.active}
    rows = []
    for skill in (skill for skill in catalog if skill.for_person):
        mark, summary = _SKILL_MARKS[activated_by.get(skill.name, "")], brief(skill.description, _MAX_HELP_CHARS)
        rows.append((skill.name, f"{mark}  {skill.source:<8} {summary}"))
    if not rows:
        return "There are no skills here. To create one: agentcli skills new NAME"
    chosen = await host.choose("Which skill do you want to turn on or off?", rows)
    if chosen is None:  # the person chose none, or the front end has no lists
        width = max(len(name) for name, _ in rows)
        problems = [f"Skipped: {folder}: {why}" for folder, why in catalog.problems.items()]
        lines = [f"  /{name:<{width}}  {detail}" for name, detail in rows]
        return "\n".join([*lines, *problems, "To use one: /NAME. To turn it off: /skills off NAME"])
    name = rows[chosen][0]
    return _turn_off(skills, name) if skills.registry.is_active(name) else await _turn_on(host, name)


async def _turn_on(host: CommandHost, name: str) -> str:
    await _activate_skill(host, name)
    return f"The skill {name} is on. To turn it off: /skills off {name}"


def _turn_off(skills: SessionSkills, name: str) -> str:
    """End a skill that the person activated, or all of them without a name."""
    names = [name] if name else [active.skill.name for active in skills.registry.active if active.by == "person"]
    if not names:
        raise UserError("You have not turned on any skill.")
    for each in reversed(names):  # the innermost first
        skills.end(each)
    return f"Turned off {', '.join(names)}."


# Subagents

GROUP = "Agents"
_MAX_TASK = 60  # characters
_RUN_MARKS = {None: "●", "done": "✓", "stopped": "■", "failed": "✗", "limit": "■"}


def add_agent_commands(commands: CommandSet, definitions: Iterable[AgentDefinition]) -> None:
    """Add `/agents` and a command for each kind, called `/agent:NAME` if its name is taken."""
    help, forms = "show, watch, steer or stop subagents", ("", "show ID", "open ID", "tell ID TEXT", "stop ID")
    hint = "[show|open|tell|stop ID]"
    commands.add(SlashCommand("agents", help, _agents, hint, is_parallel=True, forms=forms, group=GROUP))
    for kind in definitions:
        name = f"agent:{kind.name}" if kind.name in commands.names else kind.name
        if not any(letter.isspace() or letter == "/" for letter in name):  # else it could not be typed as a command
            help = brief(kind.description, _MAX_HELP_CHARS)
            commands.add(SlashCommand(name, help, partial(_delegate, kind.name), "TASK", group=GROUP))


async def _delegate(kind: str, host: CommandHost, task: str) -> Outcome:
    if not task:
        raise UsageError(f"Add a task for the agent {kind}.")
    return AsPrompt(f"Delegate this to a subagent (create_subagent with agent={kind}) and report its answer: {task}")


async def _agents(host: CommandHost, argument: str) -> Outcome:
    agents = host.session.runtime.calls.delegates.get_or_make_subagents()
    assert isinstance(agents, Subagents), "the session's builder makes no others"
    word, _, rest = argument.partition(" ")
    id, _, text = rest.strip().partition(" ")
    match word:
        case "":
            rows = [*map(_run_row, agents.runs)] or ["No subagents have run since this session was opened."]
            return "\n".join([*rows, f"Kinds: {', '.join(agents.definitions)}."])
        case "stop":
            session = _running_session(agents, id)
            for _ in tuple(session.state.conversation.queue.steering):  # waiting messages would start another turn
                session.submit(TakeBack(0))  # the first of those that are left
            session.submit(Interrupt())
            return f"Stopping {id}. Its partial answer goes to the main agent."
        case "show":
            return "\n".join(transcript_lines(await agents.transcript(id)))
        case "open":
            _running_session(agents, id)
            host.open_agent(id)
            return ""
        case "tell" if text.strip():
            _running_session(agents, id).submit(Steer((Text(text.strip()),)))
            return f"{id} gets your message with its next request."
        case _:
            raise UsageError("Usage: /agents, or /agents show ID, open ID, tell ID TEXT or stop ID.")


def _running_session(agents: Subagents, id: str) -> Session:
    """Return the session of a running subagent. Raises `UsageError` with the reason if it has none."""
    run = next((run for run in agents.runs if run.id == id), None)
    if run is None:  # no such subagent
        raise UsageError(f"No subagent {id!r} is running. /agents lists them.")
    if run.session is None and run.end is None:
        raise UsageError(f"{id} has not begun: at most {MAX_RUNNING} subagents run at a time.")
    if run.session is None or not run.session.is_busy:
        raise UsageError(f"{id} has ended. To see what it did: /agents show {id}")
    return run.session


def _run_row(run: AgentRun) -> str:
    task, title = shorten(" ".join(run.arguments.task.split()), _MAX_TASK), run.progress.title
    newest_call = f"\n    {shorten(title, _MAX_TASK)}" if run.end is None and title else ""
    return f"  {_RUN_MARKS[run.end]} {run.id} · {run.progress.summary} · {run.session_id[:13]}\n    {task}{newest_call}"
