"""`skill`: finds, activates and ends skills, and reads their files."""

from __future__ import annotations

import asyncio

from agentcli.agent.calls.scopes import Call
from agentcli.errors import ToolError, UserError
from agentcli.extensions.skills.session import SessionSkills
from agentcli.settings.files import read_small_file
from agentcli.tools.builtin.arguments import SkillCall
from agentcli.tools.tool import ToolOutput

_MOST_FOUND = 50


async def run_skill_call(skills: SessionSkills, call: Call, given: SkillCall) -> ToolOutput:
    """Raises `ToolError`."""
    try:
        if given.end:
            ended = skills.end(given.name, by="model")
            return ToolOutput(f"The skill {ended.skill.name} has ended.", summary=f"{ended.skill.name} ended")
        if given.level == 1:
            return _found(skills, given.name)
        if given.resource or given.level == 3:
            return await asyncio.to_thread(_resource, skills, given)
        activation = await skills.activate(given.name, by="model", session=call.turn.session)
    except UserError as error:
        raise ToolError(str(error), kind="validation_error") from error
    name = activation.skill.name
    return ToolOutput(f"The skill {name} is active; its instructions follow.", summary=f"{name} is active")


def _found(skills: SessionSkills, word: str) -> ToolOutput:
    """Level 1: the skills whose name or description has a word."""
    offered = [skill for skill in skills.registry.catalog if skill.for_model]
    found = [skill for skill in offered if word.lower() in f"{skill.name} {skill.description}".lower()]
    lines = [f"- {skill.name}: {skill.description}" for skill in found[:_MOST_FOUND]]
    if len(found) > _MOST_FOUND:
        lines.append(f"({len(found) - _MOST_FOUND} more: give a longer word)")
    return ToolOutput("\n".join(lines) or f"No skill has {word!r} in its name or description.", summary=f"{len(found)}")


def _resource(skills: SessionSkills, given: SkillCall) -> ToolOutput:
    """Level 3: a file of a skill's folder, or without a name the list of them. Raises `ToolError`."""
    skill = skills.registry.get(given.name or next((one.skill.name for one in reversed(skills.registry.active)), ""))
    if not skill.for_model and not skills.registry.is_active(skill.name):
        raise ToolError(f"Only the user activates the skill {skill.name}.", kind="permission_denied")
    if not given.resource:
        return ToolOutput("\n".join(skill.resources()) or "The skill has no other files.")
    try:
        path = skill.resource(given.resource)
        text = read_small_file(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ToolError(f"{path} is no text: run it, or read it with file_read.", kind="validation_error") from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ToolError(f"{given.resource} of the skill {skill.name}: {why}.", kind="not_found") from error
    return ToolOutput(text, summary=f"{skill.name}: {given.resource}")
