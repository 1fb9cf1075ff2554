"""Finds the skills that settings, trust and flags let a session have, and makes what activates them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentcli.agent.runtime import Turn, TurnStep
from agentcli.agent.turn_log import add
from agentcli.errors import UsageError
from agentcli.extensions.skills.find import Catalog, SkillFolder, find_skills, listing
from agentcli.extensions.skills.skill import Skill
from agentcli.models.choice import Models
from agentcli.settings.load import Config
from agentcli.settings.paths import home_of, project_root
from agentcli.settings.trust import SKILL_FOLDERS, project_places

if TYPE_CHECKING:
    from agentcli.agent.calls.model import SkillsInUse
    from agentcli.agent.session import Session

_MAX_NOTICES = 3


def places(config: Config, *, with_untrusted: bool = False, added: Sequence[Path] = ()) -> list[SkillFolder]:
    """Return the folders of skills, in the order in which they count: a caller's `added` ones, then the usual ones."""
    home, root = home_of(config.environment), project_root(config.cwd)
    found = [SkillFolder(folder, "project", root) for folder in project_places(config.cwd, SKILL_FOLDERS)]
    if not (config.uses_project or with_untrusted):
        found = []
    users = (config.paths.config / "skills", home / ".agents/skills", home / ".claude/skills")
    found += [SkillFolder(folder, "user") for folder in users if folder.is_dir()]
    return [*(SkillFolder(folder, "user") for folder in added), *found, SkillFolder(bundled_folder(), "bundled")]


def all_skills(config: Config, *, with_untrusted: bool = False, added: Sequence[Path] = ()) -> Catalog:
    """Return the skills of all these folders; `with_untrusted` also those of a project that is not trusted."""
    return find_skills(places(config, with_untrusted=with_untrusted, added=added), config.paths.cache / "skills")


def bundled_folder() -> Path:
    """Return the folder of the skills that come with agentcli: in the wheel, or in a checkout."""
    package = Path(__file__).parents[2]
    in_wheel = package / "bundled_skills"
    return in_wheel if in_wheel.is_dir() else package.parent / "skills"


@dataclass(kw_only=True)
class Skills:
    """The skills of one configuration, looked for when they are asked for. `tell` hears of those that are left out."""

    config: Config
    _: KW_ONLY
    is_bare: bool
    tell: Callable[[str], None]
    added: Sequence[Path] = ()

    @property
    def _is_off(self) -> bool:
        return self.is_bare or not self.config.settings.skills.enabled

    @cached_property
    def catalog(self) -> Catalog:
        if self._is_off:
            return Catalog()
        catalog = all_skills(self.config, added=self.added)
        for notice in _notices(catalog):
            self.tell(notice)
        off = self.config.settings.skills.off
        return Catalog([skill for skill in (*catalog, *catalog.shadowed) if skill.name not in off], catalog.left_out)

    @cached_property
    def offered(self) -> Sequence[Skill]:
        """The skills that the model may activate, in the order of the list."""
        settings = self.config.settings.skills
        if self._is_off or not (settings.bundled or len(places(self.config, added=self.added)) > 1):
            return ()
        return [skill for skill in self.catalog if skill.for_model and (settings.bundled or skill.source != "bundled")]

    def listing(self, window: int) -> str:
        """Return the list of skills at the beginning of each request."""
        return listing(self.offered, int(window * self.config.settings.skills.share)) if self.offered else ""

    def attach(self, session: Session, models: Models, *, outer: SkillsInUse | None = None) -> None:
        """Let a session use skills, when it asks for them first; `outer` are those of the agent that made its agent."""

        def make() -> SkillsInUse:
            from agentcli.extensions.skills.activation import SkillRegistry
            from agentcli.extensions.skills.session import SessionSkills

            return SessionSkills(SkillRegistry(self.catalog), session, partial(model_named, models=models), outer)

        session.runtime.calls.delegates.make_skills = make
        session.runtime.steps.append(ActiveSkills)


class ActiveSkills(TurnStep):
    """Keeps the active skills of a session in step with its log, and ends with a turn those that the model chose."""

    def start(self, turn: Turn, *, is_resumed: bool) -> None:
        if (skills := turn.runtime.calls.delegates.skills) is not None:
            skills.begin_turn(turn.state.conversation, is_resumed=is_resumed)

    def end(self, turn: Turn) -> None:
        if (skills := turn.runtime.calls.delegates.skills) is not None:
            skills.end_turn(partial(add, turn))


def _notices(catalog: Catalog) -> list[str]:
    """Name the skills that are left out, and what is odd about those that were not there before."""
    notices = [f"The skill in {one.path} is left out: {one.why}." for one in catalog.left_out]
    notices += [f"The skill {skill.name}: {warning}." for skill in catalog.fresh for warning in skill.warnings]
    more = len(notices) - _MAX_NOTICES
    return [*notices[:_MAX_NOTICES], f"{more} more about skills: agentcli skills list"] if more > 0 else notices


def model_named(name: str, now: str, models: Models) -> str:
    """Return `provider/model` for a model that a skill or an agent asks for, while `now` is used.

    A name without a provider is one of the present provider's. Raises `UsageError` for one that cannot be used.
    """
    if "/" not in name:
        provider = now.partition("/")[0]
        if not models.info(f"{provider}/{name}").is_known:
            raise UsageError(f"{provider} has no model {name} that is known here.")
        name = f"{provider}/{name}"
    models.info(name)
    models.require_key(name)
    models.provider(name)
    return name
