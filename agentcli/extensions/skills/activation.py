"""Activates skills, and applies their changes to a session while they are active."""

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msgspec import Struct, field, structs

from agentcli.agent.calls.model import Call, SessionCalls, SkillsInUse
from agentcli.agent.events import Notice
from agentcli.agent.permissions.modes import PolicyDecision
from agentcli.agent.permissions.rules import ALIASES, Rule, parse_rule
from agentcli.agent.session import Session
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import SkillActivated, SkillEnded, reminder
from agentcli.conversation.history import active_skills, skill_reminder
from agentcli.errors import ToolError, UsageError, UserError, did_you_mean
from agentcli.extensions.skills.find import Catalog
from agentcli.extensions.skills.skill import Skill
from agentcli.extensions.user_commands import Template, expand_template
from agentcli.llm.messages import Message, Text
from agentcli.settings.files import is_file, read_small_file
from agentcli.tools.builtin.toolset import SkillCall
from agentcli.tools.command import Grants
from agentcli.tools.tool import ToolOutput

MAX_DEPTH = 3  # skills that a model may activate within each other
_MAX_LISTED = 40  # resources that are listed with the instructions

Store = Callable[[SkillEnded], object]  # appends an entry to the log
By = Literal["person", "model"]


class SkillMessage(Struct, frozen=True):
    """A text about an activation. The model reads the instructions; the person may see those that are visible."""

    type: Literal["metadata", "instruction", "permissions"]
    text: str
    is_visible: bool = False


class Activation(Struct, frozen=True):
    """An active skill. The model's skills end with the turn, the person's when the person ends them."""

    id: str
    skill: Skill
    by: By
    messages: tuple[SkillMessage, ...] = ()

    @property
    def instructions(self) -> str:
        return "\n\n".join(message.text for message in self.messages if message.type == "instruction")


class SkillRegistry:
    """All skills, and the `active` ones, the oldest first: the person's, then a stack of the model's."""

    def __init__(self, skills: Catalog | Iterable[Skill] = ()) -> None:
        self.catalog = skills if isinstance(skills, Catalog) else Catalog(tuple(skills))
        self.active: list[Activation] = []

    def register(self, skill: Skill) -> None:
        """Add a skill. Raises `UsageError` if its name is taken."""
        if skill.name in self.catalog.by_name:
            raise UsageError(f"A skill named {skill.name!r} already exists in {self.get(skill.name).folder}.")
        self.catalog.by_name[skill.name] = skill

    def get(self, name: str) -> Skill:
        """Return a skill by its name. Raises `UsageError` that suggests a similar name."""
        if (skill := self.catalog.find(name)) is None:
            raise UsageError(f"There is no skill {name!r}{did_you_mean(name, list(self.catalog.by_name))}.")
        return skill

    def is_active(self, name: str) -> bool:
        return any(active.skill.name == name for active in self.active)

    def check(self, name: str, *, by: By = "person") -> Skill:
        """Return the skill if it may be activated now. Raises `UsageError` with the reason if it may not."""
        skill = self.get(name)
        chain = " → ".join((*(activation.skill.name for activation in self.active), skill.name))
        if by == "model" and not skill.for_model:
            raise UsageError(f"Only the user can activate the skill {skill.name}.")
        if self.is_active(skill.name):
            raise UsageError(f"The skill {skill.name} is already active ({chain}). Follow its instructions.")
        if by == "model":
            if without_others := [active.skill.name for active in self.active if not active.skill.may_nest]:
                raise UsageError(f"No other skill can be activated while {without_others[0]} is active.")
            if sum(active.by == "model" for active in self.active) == MAX_DEPTH:
                raise UsageError(f"Skills can nest at most {MAX_DEPTH} deep ({chain}). End one first.")
        return skill

    def activate(
        self,
        name: str,
        *,
        request: str = "",
        history: list[Message] | None = None,
        by: By = "person",
        instructions: str | None = None,
    ) -> Activation:
        """Activate a skill for a `request`, and append its instructions (by default its file's) to `history`.

        Raises `UsageError` if the skill may not be activated or cannot be read; then nothing has changed.
        """
        skill = self.check(name, by=by)
        text = _read_instructions(skill) if instructions is None else instructions
        if not text.strip():
            raise UsageError(f"Could not use the skill {skill.name}: it has no instructions.")
        activation = Activation(os.urandom(6).hex(), skill, by, _messages(skill, text, request))
        if history is not None:
            history.append(Message("user", (Text(activation.instructions),)))
        self.active.append(activation)
        return activation

    def deactivate(self, name: str = "", *, by: By = "person") -> Activation:
        """End the skill with a name, or else the innermost, of those that `by` activated. Raises `UsageError`."""
        own = [activation for activation in reversed(self.active) if activation.by == by]  # the innermost first
        if not own:
            raise UsageError("No skill is active." if by == "person" else "None of the skills you activated is active.")
        ended = next((activation for activation in own if name in ("", activation.skill.name)), None)
        if ended is None:
            raise UsageError(f"The skill {name} is not active.")
        if by == "model" and ended is not own[0]:  # the model ends its skills from the inside out
            raise UsageError(f"{own[0].skill.name} is the innermost skill. End it before {name}.")
        self.active.remove(ended)
        return ended


def _read_instructions(skill: Skill) -> str:
    """Return the text below the frontmatter of a skill. Raises `UsageError` if the skill cannot be used."""
    try:
        return skill.instructions()
    except (OSError, ValueError) as error:
        raise UsageError(f"Could not use the skill {skill.name}: {error}.") from error


def _messages(skill: Skill, text: str, request: str) -> tuple[SkillMessage, ...]:
    active = f"The skill {skill.name} is active{f': {request}' if request else ''}"
    instruction = f'<skill name="{skill.name}" folder="{skill.folder}">\n{text.strip()}\n{_resources(skill)}</skill>'
    messages = [SkillMessage("metadata", active, is_visible=True), SkillMessage("instruction", instruction)]
    if granted := ", ".join(skill.allowed_tools):
        messages.append(SkillMessage("permissions", f"Until the next prompt: {granted}", is_visible=True))
    return tuple(messages)


def _resources(skill: Skill) -> str:
    if not (names := skill.resources()):
        return ""
    more = f"\n({len(names) - _MAX_LISTED} more)" if len(names) > _MAX_LISTED else ""
    lines = "\n".join(names[:_MAX_LISTED])
    return f"\nFiles in its folder. Read or run them when the instructions say so:\n{lines}{more}\n"


class _Override(NamedTuple):
    """A value that an active skill has set in the session's model, and the one that it replaced."""

    activation_id: str
    value: Any
    replaced: Any


class SessionSkills(Struct, kw_only=True):
    """Keeps the active skills of a session in step with its log.

    If the session is a subagent's, its parent's skills restrict its tools, too. `find_model` completes the name of a
    model, given that of the current one.
    """

    registry: SkillRegistry
    session: Session
    find_model: Callable[[str, str], str]
    parent_skills: SkillsInUse | None = None
    _grants: dict[str, list[Rule]] = field(default_factory=dict)  # by activation id; until the next prompt
    _activated_before_prompt: set[str] = field(default_factory=set)  # ids; their grants apply during the next turn
    # By the field of the session's model that they set; the last one applies.
    _overrides: dict[str, list[_Override]] = field(default_factory=lambda: {"name": [], "effort": []})

    async def activate(self, name: str, *, request: str = "", by: By = "person") -> Activation:
        """Activate a skill; the model reads its instructions with the next request. Raises `UserError`."""
        skill = self.registry.check(name, by=by)  # raises if it may not be activated now
        text = await self._expand_instructions(skill, request)
        activation = self.registry.activate(name, request=request, by=by, instructions=text)
        entry, note = SkillActivated(activation.id, skill, by), reminder(activation.instructions)
        try:
            if self.session.is_busy:
                self.session.append(entry)
                self.session.state.notes.append(note)  # goes with the next request of the running turn
            else:
                self._activated_before_prompt.add(activation.id)
                self.session.append(entry, note)  # logged now: no turn is running to send the note
        except BaseException:  # the log could not be written
            self.registry.active.remove(activation)
            raise
        self._grants[activation.id] = self._parse_grants(skill)
        self.session.state.rules.allow += self._grants[activation.id]
        self._apply_changes(activation)
        return activation

    async def _expand_instructions(self, skill: Skill, request: str) -> str:
        """Return a skill's instructions with the request and the output of its commands. Raises `UserError`."""
        template = Template(
            name=skill.name,
            body=skill.fill(_read_instructions(skill)),  # with the folders' paths, not yet with the request
            allowed=tuple(self._parse_grants(skill)),
            file=skill.file,
            takes_words=skill.takes_words,
            names=skill.arguments,
            adds_argument=False,  # because the request itself follows as the prompt
        )
        return await expand_template(template, request, self.session)

    async def answer(self, call: Call, arguments: SkillCall) -> ToolOutput:
        """Run a call of `skill`: search for skills, activate or end one, or read its files. Raises `ToolError`."""
        try:
            match arguments:
                case SkillCall(end=True):
                    name = self.end(arguments.name, by="model").skill.name
                    return ToolOutput(f"The skill {name} has ended.", summary=f"{name} ended")
                case SkillCall(level=1):  # names and descriptions
                    return _search_skills(self.registry, arguments.name)
                case _ if arguments.resource or arguments.level == 3:  # other files of a skill
                    return await asyncio.to_thread(_read_resource, self.registry, arguments)
                case _:
                    name = (await self.activate(arguments.name, by="model")).skill.name
                    text = f"The skill {name} is active; its instructions follow."
                    return ToolOutput(text, summary=f"{name} is active")
        except UserError as error:
            raise ToolError(str(error), kind="validation_error") from error

    def end(self, name: str = "", *, by: By = "person", store: Store | None = None) -> Activation:
        """End a skill, or the innermost one without a name; `store` logs that. Raises `UsageError`."""
        ended = self.registry.deactivate(name, by=by)
        self._undo_changes(ended)
        (store or self.session.append)(SkillEnded(ended.id))
        self.session.state.notes.append(
            reminder(f"The skill {ended.skill.name} has ended. Its instructions no longer apply.")
        )
        return ended

    def end_turn(self, store: Store) -> None:
        """End the skills that the model activated, the innermost first."""
        while any(active.by == "model" for active in self.registry.active):
            self.end(by="model", store=store)

    def begin_turn(self, conversation: Conversation, *, is_resumed: bool = False) -> None:
        """End the grants for the last prompt, and make the active skills those of the log, as after a rewind.

        A skill that the model activated becomes active again only if its turn `is_resumed`, because it ends with it.
        """
        for id in self._grants.keys() - self._activated_before_prompt:
            self._revoke_grants(id)
        self._activated_before_prompt.clear()
        logged = {entry.id: entry for entry in active_skills(conversation.path)}
        for activation in tuple(self.registry.active):
            if activation.id not in logged:
                self.registry.active.remove(activation)
                self._undo_changes(activation)
        active_ids = {activation.id for activation in self.registry.active}
        for entry in [entry for id, entry in logged.items() if id not in active_ids]:
            if entry.by == "model" and not is_resumed:  # it ended with its turn, but a rewind left out its `SkillEnded`
                self.session.append(SkillEnded(entry.id))
            else:
                self._reactivate(entry, conversation)

    def _reactivate(self, entry: SkillActivated, conversation: Conversation) -> None:
        """Activate a skill of the log again, as after a resume; the model gets instructions that it no longer sees."""
        skill = Skill(**structs.asdict(entry.skill))
        activation = Activation(entry.id, skill, entry.by)
        if skill_reminder(entry, conversation.path) is None:  # the instructions are no longer in the conversation
            try:  # they are read from the file again
                instructions = SkillRegistry([skill]).activate(entry.skill.name).instructions
            except UsageError as error:
                self.session.append(SkillEnded(entry.id))
                self.session.publish(Notice(str(error)))
                return
            self.session.state.notes.append(reminder(instructions))
        self.registry.active.append(activation)
        self._apply_changes(activation)

    def narrowed(self, tool: str, decision: PolicyDecision) -> PolicyDecision:
        """Return the decision on a call, or a denial if an active skill does not allow the tool."""
        if self.parent_skills is not None:
            decision = self.parent_skills.narrowed(tool, decision)
        for skill in (activation.skill for activation in self.registry.active):
            if skill.tools is None:  # all are allowed
                continue
            names = [rule.partition("(")[0] for rule in skill.tools]
            allowed = (*(ALIASES.get(name, name) for name in names), "skill")  # with `skill` the model can end it
            if tool not in allowed:
                tools = ", ".join(skill.tools) or "no tool"
                return PolicyDecision(outcome="deny", reason=f"the skill {skill.name} allows only {tools}")
        return decision

    def _parse_grants(self, skill: Skill) -> list[Rule]:
        rules = []
        for text in map(skill.fill, skill.allowed_tools):
            try:
                rules.append(parse_rule(text, f"skill {skill.name}"))
            except UsageError as error:
                self.session.publish(Notice(f"The skill {skill.name}, allowed-tools: {error}"))
        return rules

    def _revoke_grants(self, id: str) -> None:
        for rule in self._grants.pop(id, ()):
            if rule in self.session.state.rules.allow:
                self.session.state.rules.allow.remove(rule)

    def _apply_changes(self, activation: Activation) -> None:
        """Use the skill's model and effort, and allow reading its files."""
        skill, state = activation.skill, self.session.state
        if skill.model:
            try:
                self._override(activation.id, "name", self.find_model(skill.model, state.model.name))
            except UserError as error:
                notice = f"The skill {skill.name} asks for {skill.model}: {error} Continuing with {state.model.name}."
                self.session.publish(Notice(notice))
        if skill.effort:
            self._override(activation.id, "effort", skill.effort)
        self.session.runtime.calls.workspace.grants += Grants(readable=_readable_files(skill))

    def _override(self, id: str, key: Literal["name", "effort"], value: Any) -> None:
        self._overrides[key].append(_Override(id, value, getattr(self.session.state.model, key)))
        setattr(self.session.state.model, key, value)

    def _undo_changes(self, activation: Activation) -> None:
        """Undo the changes of a skill; a model or effort that the person or a later skill has chosen stays."""
        self._revoke_grants(activation.id)
        for key, overrides in self._overrides.items():
            ids = [override.activation_id for override in overrides]
            if activation.id not in ids:
                continue
            index = ids.index(activation.id)
            undone = overrides.pop(index)
            if index < len(overrides):  # the next override replaced this value, so it now replaces the one before
                overrides[index] = overrides[index]._replace(replaced=undone.replaced)
            elif getattr(self.session.state.model, key) == undone.value:  # else the person has chosen another since
                setattr(self.session.state.model, key, undone.replaced)
        self.session.runtime.calls.workspace.grants -= Grants(readable=_readable_files(activation.skill))


def _readable_files(skill: Skill) -> tuple[Path, ...]:
    folder = Path(skill.folder).resolve()
    return (skill.file.resolve(), *(path for name in skill.resources() if is_file(path := folder / name)))


def skills_of(calls: SessionCalls) -> SessionSkills:
    """Return the skills of a session. Raises `UsageError` if it has none."""
    skills = calls.delegates.get_or_make_skills()
    assert isinstance(skills, SessionSkills), "the session's builder makes no others"
    return skills


def _search_skills(registry: SkillRegistry, word: str) -> ToolOutput:
    lines = [f"- {skill.name}: {skill.description}" for skill in registry.catalog if skill.for_model]
    found = [line for line in lines if word.lower() in line.lower()]
    return ToolOutput("\n".join(found) or f"No skill matches {word!r}.", summary=f"{len(found)}")


def _read_resource(registry: SkillRegistry, arguments: SkillCall) -> ToolOutput:
    """Return a file of a skill, or the list of its files if none is named. Raises `ToolError` and `UsageError`."""
    innermost = registry.active[-1].skill.name if registry.active else ""
    skill = registry.get(arguments.name or innermost)  # without a name, the one that was activated last
    if not skill.for_model and not registry.is_active(skill.name):
        raise ToolError(f"Only the user can activate the skill {skill.name}.", kind="permission_denied")
    if not arguments.resource:
        return ToolOutput("\n".join(skill.resources()) or "The skill has no other files.")
    try:
        path = skill.resource(arguments.resource)
        text = read_small_file(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ToolError(f"{path} is not text. Run it, or read it with file_read.", kind="validation_error") from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ToolError(f"{arguments.resource} of the skill {skill.name}: {why}.", kind="not_found") from error
    return ToolOutput(text, summary=f"{skill.name}: {arguments.resource}")
