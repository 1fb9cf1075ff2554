"""Finds the skills that settings, trust and flags let a session have, and tells the model of them."""

from __future__ import annotations

import os
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from agentcli.agent.runtime import Turn, TurnStep
from agentcli.agent.turn_log import add
from agentcli.conversation.entries import FILE, Source
from agentcli.errors import UsageError
from agentcli.extensions.skills.skill import Skill, read_skill
from agentcli.models.choice import Models
from agentcli.settings.files import make_private_folder, replace_file
from agentcli.settings.load import Config
from agentcli.settings.paths import home_of, project_root
from agentcli.settings.trust import SKILL_FOLDERS, project_places

if TYPE_CHECKING:
    from agentcli.agent.calls.model import SkillsInUse
    from agentcli.agent.session import Session


T = TypeVar("T")
Stamp = tuple[int, ...]

MAX_FOLDERS = 2_000  # of one place
_MAX_DEPTH = 4
_CACHE_FORM = "2"  # changes with what is kept
_BYTES_PER_TOKEN = 3  # of prose; few tokenizers make more of it
_MAX_DESCRIPTION = 1_024  # characters that a model is told
_PASSED_OVER = frozenset((".git", "node_modules", "__pycache__"))
_HEAD = """\
# Skills
When a task fits one of these, call `skill` with its name first: it gives instructions for such tasks.
"""


class LeftOut(NamedTuple):
    """A file, or a skill's folder, that cannot be used, and why."""

    path: str
    why: str


class CachedRead(Struct, Generic[T], frozen=True, array_like=True):
    """The content of a file when it had this stamp; without a value `problem` says why it cannot be used."""

    stamp: Stamp
    value: T | None
    problem: str = ""


class FileValues(NamedTuple, Generic[T]):
    """The values of files by their paths, those without one, and the paths that were read now, not from the cache."""

    values: dict[str, T]
    left_out: list[LeftOut]
    fresh: set[str]


def stamp_of(status: os.stat_result) -> Stamp:
    """Return values that change with a file and its contents; a program cannot choose the second, `ctime`."""
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def read_once(
    files: Mapping[str, Stamp], kind: type[T], read: Callable[[str], T], *, cache: Path, place: Path
) -> FileValues[T]:
    """Read files, or take what `cache` has of them: a start reads one file. `read` raises `OSError` or `ValueError`."""
    if not files:
        return FileValues({}, [], set())
    kept_in = cache / f"{sha256(os.fsencode(place)).hexdigest()[:16]}.json"
    known: dict[str, CachedRead[T]] = {}
    with suppress(OSError, msgspec.MsgspecError):
        form, kept = msgspec.json.decode(kept_in.read_bytes(), type=tuple[str, dict[str, CachedRead[kind]]])  # type: ignore[valid-type]
        known = kept if form == _CACHE_FORM else {}
    now: dict[str, CachedRead[T]] = {}
    fresh: set[str] = set()
    for path, stamp in files.items():
        if path in known and known[path].stamp == stamp:
            now[path] = known[path]
            continue
        fresh.add(path)
        try:
            now[path] = CachedRead(stamp, read(path))
        except (OSError, ValueError) as error:
            now[path] = CachedRead(stamp, None, getattr(error, "strerror", None) or str(error))
    if fresh or len(now) != len(known):
        with suppress(OSError, UnicodeEncodeError):  # the next start reads them again
            make_private_folder(kept_in.parent)
            replace_file(kept_in, msgspec.json.encode((_CACHE_FORM, now)), syncs=False)
    values = {path: one.value for path, one in now.items() if one.value is not None}
    return FileValues(values, [LeftOut(path, one.problem) for path, one in now.items() if one.value is None], fresh)


class SkillFolder(Struct, frozen=True):
    """A folder of skills. One with a `root` holds only what lies below that, links followed."""

    folder: Path
    source: Source
    root: Path | None = None


class Catalog:
    """Skills by name; the first of a name counts, others are `shadowed`. `fresh` did not come from the cache."""

    def __init__(
        self, skills: Sequence[Skill] = (), left_out: Sequence[LeftOut] = (), fresh: Sequence[Skill] = ()
    ) -> None:
        self.by_name: dict[str, Skill] = {}
        self.shadowed: list[Skill] = []
        for skill in skills:
            if self.by_name.setdefault(skill.name, skill) is not skill:
                self.shadowed.append(skill)
        self.left_out = tuple(left_out)
        self.fresh = tuple(fresh)

    def __iter__(self) -> Iterator[Skill]:
        return iter(self.by_name.values())

    def __len__(self) -> int:
        return len(self.by_name)

    def find(self, name: str) -> Skill | None:
        """By its name, or as `user:name` where another one stands before it."""
        if (skill := self.by_name.get(name)) is not None:
            return skill
        source, _, rest = name.partition(":")
        source = "project" if source == "local" else source
        return next((one for one in (*self, *self.shadowed) if one.source == source and one.name == rest), None)


def listing(skills: Sequence[Skill], most_tokens: int) -> str:
    """Return the text that tells a model of skills (level 1): the longer, the less of each is listed."""
    if not skills:
        return ""
    most = most_tokens * _BYTES_PER_TOKEN - len(_HEAD)

    def size(length: int) -> int:
        return sum(len(_line(skill, length).encode()) + 1 for skill in skills)

    longest = max(bisect(range(_MAX_DESCRIPTION + 1), most, key=size) - 1, 0)
    lines: list[str] = []
    for skill in skills:
        line = _line(skill, longest)
        most -= len(line.encode()) + 1
        if most < 0 and lines:
            lines.append(f"({len(skills) - len(lines)} more: skill with level 1 and a word for its name looks for one)")
            break
        lines.append(line)
    return _HEAD + "\n".join(lines)


def _line(skill: Skill, longest: int) -> str:
    short = skill.description if len(skill.description) <= longest else f"{skill.description[: longest - 1].rstrip()}…"
    return f"- {skill.name}: {short}" if longest else f"- {skill.name}"


def _files_in(place: SkillFolder) -> Iterator[tuple[str, Stamp]]:
    """Yield the folders with a SKILL.md, in the order of their names, and the stamp of that file."""
    root = os.path.realpath(place.root) if place.root is not None else None
    waiting = [(str(place.folder), 0)]
    looked_at = 0
    while waiting and looked_at < MAX_FOLDERS:
        folder, depth = waiting.pop()
        looked_at += 1
        if root is not None and not f"{os.path.realpath(folder)}/".startswith(f"{root}/"):
            continue
        if depth:
            with suppress(OSError):
                status = os.stat(f"{folder}/{FILE}")  # noqa: PTH116 - a thousand of them
                if root is None or f"{os.path.realpath(f'{folder}/{FILE}')}/".startswith(f"{root}/"):
                    yield folder, stamp_of(status)
                continue
        if depth < _MAX_DEPTH:
            with suppress(OSError), os.scandir(folder) as entries:
                inside = [entry.path for entry in entries if entry.name not in _PASSED_OVER and entry.is_dir()]
                waiting += [(path, depth + 1) for path in sorted(inside, reverse=True)]


_MAX_NOTICES = 3


def places(config: Config, *, with_untrusted: bool = False, added: Sequence[Path] = ()) -> list[SkillFolder]:
    """Return the folders of skills, in the order in which they count: a caller's `added` ones, then the usual ones."""
    home, root = home_of(config.environment), project_root(config.cwd)
    found = [SkillFolder(folder, "project", root) for folder in project_places(config.cwd, SKILL_FOLDERS)]
    if not (config.uses_project or with_untrusted):
        found = []
    users = (config.paths.config / "skills", home / ".agents/skills", home / ".claude/skills")
    found += [SkillFolder(folder, "user") for folder in users if folder.is_dir()]
    package = Path(__file__).parents[2]
    bundled = package / "bundled_skills"  # in the wheel
    found += [SkillFolder(bundled if bundled.is_dir() else package.parent / "skills", "bundled")]
    return [*(SkillFolder(folder, "user") for folder in added), *found]


def all_skills(config: Config, *, with_untrusted: bool = False, added: Sequence[Path] = ()) -> Catalog:
    """Return the skills of all these folders; `with_untrusted` also those of a project that is not trusted."""
    cache = config.paths.cache / "skills"
    found = [
        read_once(dict(_files_in(one)), Skill, partial(read_skill, source=one.source), cache=cache, place=one.folder)
        for one in places(config, with_untrusted=with_untrusted, added=added)
    ]
    return Catalog(
        [skill for each in found for skill in each.values.values()],
        [one for each in found for one in each.left_out],
        [skill for each in found for folder, skill in each.values.items() if folder in each.fresh],
    )


@dataclass(kw_only=True)
class Skills:
    """The skills of one configuration, looked for when they are asked for. `tell` hears of those that are left out."""

    config: Config
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
        return listing(self.offered, int(window * self.config.settings.skills.share))

    def attach(self, session: Session, models: Models, *, outer: SkillsInUse | None = None) -> None:
        """Let a session use skills, when it asks for them first; `outer` are those of the agent that made its agent."""

        def make() -> SkillsInUse:
            from agentcli.extensions.skills.activation import SessionSkills, SkillRegistry

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
    """Return `provider/model` for a name, which may be of the provider of `now`. Raises `UsageError`."""
    if "/" not in name:
        provider = now.partition("/")[0]
        if not models.info(f"{provider}/{name}").is_known:
            raise UsageError(f"{provider} has no model {name} that is known here.")
        name = f"{provider}/{name}"
    models.info(name)
    models.require_key(name)
    models.provider(name)
    return name
