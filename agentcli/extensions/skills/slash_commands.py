"""Slash commands of skills: `/NAME` activates one and starts with it, `/skills` lists, activates and ends them."""

from __future__ import annotations

from functools import partial

from agentcli.agent.commands.command import SKILLS, AsPrompt, CommandHost, CommandSet, Outcome, SlashCommand
from agentcli.conversation.history import shorten
from agentcli.errors import UserError
from agentcli.extensions.skills.activation import SessionSkills, skills_of
from agentcli.extensions.skills.find import Catalog
from agentcli.extensions.skills.skill import Skill

_MAX_HELP = 80  # characters
_MARKS = {"person": "● on", "model": "● until the turn ends", "": "○"}


def add_skill_commands(commands: CommandSet, catalog: Catalog) -> None:
    """Add `/skills` and a command for each skill, called `/SOURCE:NAME` if its name is taken."""
    help, forms = "show the skills, activate or end one", ("", "NAME", "off NAME", "off")
    commands.add(SlashCommand("skills", help, _skills, "[NAME]", group=SKILLS, forms=forms))
    for skill in (*catalog, *catalog.shadowed):
        name = f"{skill.source}:{skill.name}" if skill.name in commands.names else skill.name
        if skill.for_person and name not in commands.names:
            commands.add(
                SlashCommand(name, _summary(skill), partial(_use, name), skill.argument_hint or "[TEXT]", group=SKILLS)
            )


async def _use(name: str, host: CommandHost, argument: str) -> Outcome:
    await _activate(host, name, argument)
    return AsPrompt(argument or f"Do what the skill {name} says.")


async def _activate(host: CommandHost, name: str, argument: str = "") -> None:
    """Activate a skill, anew if the person has done so before: its instructions may contain the argument."""
    skills = skills_of(host.session.runtime.calls)
    skill = skills.registry.get(name)
    if any(one.skill.name == skill.name and one.by == "person" for one in skills.registry.active):
        skills.end(skill.name)
    await skills.activate(name, request=argument)


async def _skills(host: CommandHost, argument: str) -> Outcome:
    skills = skills_of(host.session.runtime.calls)
    word, _, name = argument.partition(" ")
    if word == "off":
        return _end(skills, name.strip())
    if argument:
        return await _switch_on(host, argument)
    catalog = skills.registry.catalog
    by = {one.skill.name: one.by for one in skills.registry.active}
    rows = [
        (one.name, f"{_MARKS[by.get(one.name, '')]}  {one.source:<8} {_summary(one)}")
        for one in catalog
        if one.for_person
    ]
    if not rows:
        return "There are no skills here. agentcli skills new NAME makes one."
    chosen = await host.choose("Skills: choose one to switch it on or off", rows)
    if chosen is None:
        width = max(len(name) for name, _ in rows)
        problems = [f"Left out: {folder}: {why}" for folder, why in catalog.problems.items()]
        lines = [f"  /{name:<{width}}  {detail}" for name, detail in rows]
        return "\n".join([*lines, *problems, "/NAME begins with one, /skills off NAME ends it."])
    name = rows[chosen][0]
    return _end(skills, name) if skills.registry.is_active(name) else await _switch_on(host, name)


async def _switch_on(host: CommandHost, name: str) -> str:
    await _activate(host, name)
    return f"The skill {name} is active until /skills off {name}."


def _end(skills: SessionSkills, name: str) -> str:
    own = [one.skill.name for one in skills.registry.active if one.by == "person"]
    if not own and not name:
        raise UserError("You have activated no skill.")
    for each in [name] if name else reversed(own):
        skills.end(each)
    return f"{name or ', '.join(own)}: active no longer."


def _summary(skill: Skill) -> str:
    return shorten(skill.description, _MAX_HELP)
