"""Finds the skills that settings, trust and flags allow in a session, and lists them for the model."""

import os
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from agentcli.agent.calls.model import SkillsInUse
from agentcli.agent.runtime import Turn, TurnStep
from agentcli.agent.session import Session
from agentcli.agent.turn_log import add
from agentcli.conversation.entries import FILE, Source
from agentcli.conversation.history import shorten
from agentcli.errors import UsageError
from agentcli.extensions.programs import Plugins
from agentcli.extensions.skills.skill import Skill, read_skill
from agentcli.models.choice import Models, split_name
from agentcli.settings.files import home_of, is_file, make_private_folder, project_root, replace_file
from agentcli.settings.load import Config
from agentcli.settings.trust import SKILL_FOLDERS, definition_folders

if TYPE_CHECKING:
    from agentcli.extensions.plugins.plugin import Plugin

T = TypeVar("T")
Stamp = tuple[int, ...]

_MAX_DEPTH = 4  # levels of folders that are searched for skills
_MAX_SEARCHED = 2_000  # folders below one of `skill_folders`
_MAX_CHARS = 1_024  # of a description in the list for the model
BYTES_PER_TOKEN = 3  # of prose; few tokenizers make more tokens of it
_CACHE_VERSION = "3"  # changes with the form of the cached values
_SKIPPED_FOLDERS = frozenset((".git", "node_modules", "__pycache__"))
_HEAD = """\
# Skills
When a task fits one of these, first call `skill` with its name to get instructions for it.
"""
_MORE = "to search, call skill with level 1 and a word as name"


class CachedRead(msgspec.Struct, Generic[T], frozen=True, array_like=True):
    """The value read from a file when it had this stamp, or the problem with reading it."""

    stamp: Stamp
    value: T | None
    problem: str = ""


def stamp_of(status: os.stat_result) -> Stamp:
    """Return numbers that change with a file and its contents; the second, `ctime`, cannot be set by a program."""
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def read_cached(
    files: Mapping[str, Stamp], value_type: type[T], read: Callable[[str], T], *, cache: Path, folder: Path
) -> dict[str, CachedRead[T]]:
    """Return the results of reading files, by path; those of unchanged files come from the cache file of `folder`.

    Most starts read only the cache. `read` raises `OSError` or `ValueError` for a file that cannot be used.
    """
    if not files:
        return {}
    cache_file = cache / f"{sha256(os.fsencode(folder)).hexdigest()[:16]}.json"
    cached: dict[str, CachedRead[T]] = {}
    with suppress(OSError, msgspec.MsgspecError):
        file_type = tuple[str, dict[str, CachedRead[value_type]]]  # type: ignore[valid-type]
        version, reads = msgspec.json.decode(cache_file.read_bytes(), type=file_type)
        cached = reads if version == _CACHE_VERSION else {}
    results: dict[str, CachedRead[T]] = {}
    for path, stamp in files.items():
        if path in cached and cached[path].stamp == stamp:
            results[path] = cached[path]
            continue
        try:
            results[path] = CachedRead(stamp, read(path))
        except (OSError, ValueError) as error:
            results[path] = CachedRead(stamp, None, getattr(error, "strerror", None) or str(error))
    if results != cached:
        with suppress(OSError, UnicodeEncodeError):  # the next start reads the files again
            make_private_folder(cache_file.parent)
            replace_file(cache_file, msgspec.json.encode((_CACHE_VERSION, results)), syncs=False)
    return results


class SearchedFolder(msgspec.Struct, frozen=True):
    """A folder in which skills are searched for. If it has a `root`, files outside of that are ignored, also if linked.

    A plugin's skills are named `PLUGIN:NAME`, and its folder may itself be a skill.
    """

    path: Path
    source: Source
    root: Path | None = None
    plugin: str = ""


def find_named(by_name: Mapping[str, T], name: str) -> T | None:
    """Return the item with a name; `PLUGIN:` may be left out if only one plugin has an item of this name."""
    of_plugins = [item for key, item in by_name.items() if key.endswith(f":{name}")]
    return by_name.get(name) or (of_plugins[0] if len(of_plugins) == 1 else None)


class Catalog:
    """Skills by name; later ones of the same name are `shadowed`. `problems` are the reasons for skipped folders."""

    def __init__(self, skills: Sequence[Skill] = (), problems: Mapping[str, str] = {}) -> None:
        self.by_name: dict[str, Skill] = {}
        self.shadowed: list[Skill] = []
        for skill in skills:
            if self.by_name.setdefault(skill.name, skill) is not skill:
                self.shadowed.append(skill)
        self.problems = problems

    def __iter__(self) -> Iterator[Skill]:
        return iter(self.by_name.values())

    def find(self, name: str) -> Skill | None:
        """Return a skill by its name, or by `SOURCE:NAME`, which also finds a shadowed one."""
        if (skill := find_named(self.by_name, name)) is not None:
            return skill
        source, _, rest = name.partition(":")
        return next((each for each in (*self, *self.shadowed) if (each.source, each.name) == (source, rest)), None)


def format_list(
    items: Mapping[str, str], max_tokens: int, *, head: str = _HEAD, more: str = _MORE, max_chars: int = _MAX_CHARS
) -> str:
    """List names and descriptions for a model, with the descriptions shortened so that all fit in `max_tokens`."""
    if not items:
        return ""
    free_bytes = max_tokens * BYTES_PER_TOKEN - len(head)

    def total_bytes(description_chars: int) -> int:
        return sum(len(_line(*item, description_chars).encode()) + 1 for item in items.items())

    # The greatest length of descriptions with which all lines fit; 0 if not even the names fit.
    description_chars = max(bisect(range(max_chars + 1), free_bytes, key=total_bytes) - 1, 0)
    lines: list[str] = []
    for name, description in items.items():
        line = _line(name, description, description_chars)
        free_bytes -= len(line.encode()) + 1
        if free_bytes < 0 and lines:  # not even the names fit, and `more` says how to find the others
            lines.append(f"({len(items) - len(lines)} more: {more})")
            break
        lines.append(line)
    return head + "\n".join(lines)


def _line(name: str, text: str, max_chars: int) -> str:
    short = text if len(text) <= max_chars else f"{text[: max_chars - 1].rstrip()}…"
    return f"- {name}: {short}" if max_chars else f"- {name}"


def find_skill_folders(searched: SearchedFolder) -> Iterator[tuple[str, Stamp]]:
    """Yield the folders that have a SKILL.md, in the order of their names, and the stamp of that file."""
    # Without a root it is "", with which every path begins.
    root = "" if searched.root is None else os.path.realpath(searched.root).rstrip("/") + "/"
    waiting = [(str(searched.path), 0)]
    for _ in range(_MAX_SEARCHED):
        if not waiting:
            break
        folder, depth = waiting.pop()
        if not f"{os.path.realpath(folder)}/".startswith(root):
            continue
        if depth or (searched.plugin and is_file(Path(folder, FILE))):  # only a plugin's folder may be a skill itself
            with suppress(OSError):  # without the file, the search continues inside the folder
                status = os.stat(f"{folder}/{FILE}")  # noqa: PTH116 - called a thousand times
                if os.path.realpath(f"{folder}/{FILE}").startswith(root):
                    yield folder, stamp_of(status)
                continue  # a skill contains no others
        if depth < _MAX_DEPTH:
            with suppress(OSError), os.scandir(folder) as entries:
                inside = [entry.path for entry in entries if entry.name not in _SKIPPED_FOLDERS and entry.is_dir()]
                waiting += [(path, depth + 1) for path in sorted(inside, reverse=True)]


def skill_folders(
    config: Config, *, with_untrusted: bool = False, added: Sequence[Path] = (), plugins: Sequence["Plugin"] = ()
) -> list[SearchedFolder]:
    """Return the folders that are searched for skills, by precedence; an untrusted project's only `with_untrusted`."""
    home, root = home_of(config.environment), project_root(config.cwd)
    folders = [SearchedFolder(folder, "user") for folder in added]
    if config.project.is_allowed or with_untrusted:
        folders += [SearchedFolder(folder, "project", root) for folder in definition_folders(config.cwd, SKILL_FOLDERS)]
    user_folders = (config.paths.config / "skills", home / ".agents/skills", home / ".claude/skills")
    folders += [SearchedFolder(folder, "user") for folder in user_folders if folder.is_dir()]
    folders += plugin_skill_folders(plugins)
    package = Path(__file__).parents[2]
    bundled = package / "bundled_skills"  # in the wheel
    return [*folders, SearchedFolder(bundled if bundled.is_dir() else package.parent / "skills", "bundled")]


def plugin_skill_folders(plugins: Sequence["Plugin"]) -> list[SearchedFolder]:
    return [SearchedFolder(path, "plugin", plugin.root, plugin.name) for plugin in plugins for path in plugin.skills]


def skills_in(folders: Sequence[SearchedFolder], config: Config) -> Catalog:
    """Read all skills in folders, through the cache. Of two with one name, the first applies."""
    skills: list[Skill] = []
    problems: dict[str, str] = {}
    for searched in folders:
        read, stamps = partial(read_skill, source=searched.source), dict(find_skill_folders(searched))
        reads = read_cached(stamps, Skill, read, cache=config.paths.cache / "skills", folder=searched.path)
        for path, result in reads.items():
            if (skill := result.value) is None:
                problems[path] = result.problem
            elif searched.plugin:
                name, root = f"{searched.plugin}:{skill.name}", str(searched.root)
                skills.append(msgspec.structs.replace(skill, name=name, plugin_root=root))
            else:
                skills.append(skill)
    return Catalog(skills, problems)


class Skills(msgspec.Struct, kw_only=True, dict=True):
    """The skills of the configuration of `plugins`, searched for when they are first needed."""

    plugins: Plugins
    added: Sequence[Path] = ()

    @cached_property
    def _folders(self) -> list[SearchedFolder]:
        plugins = self.plugins.active
        if self.plugins.is_bare:
            return plugin_skill_folders(plugins)
        return skill_folders(self.plugins.config, added=self.added, plugins=plugins)

    @cached_property
    def catalog(self) -> Catalog:
        """The skills that are not turned off; those that cannot be used are reported."""
        if not self.plugins.config.settings.skills.enabled:
            return Catalog()
        catalog = skills_in(self._folders, self.plugins.config)
        if catalog.problems:
            names = shorten(", ".join(Path(folder).name for folder in catalog.problems), 200)
            self.plugins.on_notice(f"Skills skipped: {names}. To see why: agentcli skills list")
        off = self.plugins.config.settings.skills.off
        # Shadowed skills stay shadowed, and are still found as SOURCE:NAME.
        return Catalog([skill for skill in (*catalog, *catalog.shadowed) if skill.name not in off], catalog.problems)

    @cached_property
    def offered(self) -> Sequence[Skill]:
        """The skills that the model may activate, in the order of the list."""
        with_bundled = self.plugins.config.settings.skills.bundled
        if not with_bundled and all(folder.source == "bundled" for folder in self._folders):
            return ()  # without reading a file
        return [skill for skill in self.catalog if skill.for_model and (with_bundled or skill.source != "bundled")]

    def listing(self, window: int, agents: str) -> str:
        """Return the list of skills for each request: a share of the `window` in tokens, minus the list of `agents`."""
        max_tokens = int(window * self.plugins.config.settings.skills.share) - len(agents.encode()) // BYTES_PER_TOKEN
        return format_list({skill.name: skill.description for skill in self.offered}, max_tokens)

    def attach(self, session: Session, models: Models, *, parent_skills: SkillsInUse | None = None) -> None:
        """Let a session use skills. `parent_skills` are those of the parent if the session is a subagent's."""

        def make_skills() -> SkillsInUse:
            from agentcli.extensions.skills.activation import SessionSkills, SkillRegistry

            registry, find_model = SkillRegistry(self.catalog), partial(full_model_name, models=models)
            return SessionSkills(registry=registry, session=session, find_model=find_model, parent_skills=parent_skills)

        session.runtime.calls.delegates.make_skills = make_skills
        session.runtime.steps.append(ActiveSkills)


class ActiveSkills(TurnStep):
    """Keeps a session's active skills in step with its log, and ends those that the model activated after the turn."""

    def start(self, turn: Turn, *, is_resumed: bool) -> None:
        if (skills := turn.runtime.calls.delegates.skills) is not None:
            skills.begin_turn(turn.state.conversation, is_resumed=is_resumed)

    def end(self, turn: Turn) -> None:
        if (skills := turn.runtime.calls.delegates.skills) is not None:
            skills.end_turn(partial(add, turn))


def full_model_name(name: str, current: str, models: Models) -> str:
    """Return `PROVIDER/MODEL` for a name; the default provider is that of the `current` model. Raises `UsageError`."""
    if name == "inherit":
        return current
    if "/" not in name:
        provider = split_name(current)[0]
        if not models.info(f"{provider}/{name}").is_known:
            raise UsageError(f"{provider} has no known model {name}.")
        name = f"{provider}/{name}"
    models.info(name)  # this and the next two raise if the model is unknown or has no key
    models.require_key(name)
    models.provider(name)
    return name
