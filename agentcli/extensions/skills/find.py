"""Finds skills in folders that lie above each other, and tells the model their names and descriptions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from agentcli.conversation.skill_record import FILE, Source
from agentcli.extensions.skills.skill import Skill, read_skill
from agentcli.settings.files import make_private_folder, replace_file

T = TypeVar("T")
Stamp = tuple[int, ...]

_FORM = "2"  # changes with what is kept


class Read(Struct, Generic[T], frozen=True, array_like=True):
    """What a file was when it had this stamp; without a value `problem` says why it cannot be used."""

    stamp: Stamp
    value: T | None
    problem: str = ""


def stamp_of(status: os.stat_result) -> Stamp:
    """What changes with a file, its contents included: a program can set the second of them to no time but now."""
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def read_once(
    files: Mapping[str, Stamp], kind: type[T], read: Callable[[str], T], cache: Path | None, place: Path
) -> tuple[dict[str, Read[T]], set[str]]:
    """What is in files, by their paths, and those that were read now, not taken from `cache`.

    `read` raises `OSError` or `ValueError` for a file that cannot be used. `place` names what is kept.
    """
    kept_in = cache / f"{sha256(os.fsencode(place)).hexdigest()[:16]}.json" if cache and files else None
    known = _known(kept_in, kind)
    now = {path: known[path] for path, stamp in files.items() if path in known and known[path].stamp == stamp}
    fresh = files.keys() - now.keys()
    if fresh:
        now |= {path: _read(path, files[path], read) for path in fresh}
        now = {path: now[path] for path in files}
    if kept_in is not None and (fresh or len(now) != len(known)):
        _keep(kept_in, now.items())
    return now, set(fresh)


def _read(path: str, stamp: Stamp, read: Callable[[str], T]) -> Read[T]:
    try:
        return Read(stamp, read(path))
    except OSError as error:
        return Read(stamp, None, error.strerror or str(error))
    except ValueError as error:
        return Read(stamp, None, str(error))


def _known(file: Path | None, kind: type[T]) -> dict[str, Read[T]]:
    with suppress(OSError, msgspec.MsgspecError):
        if file is not None:
            form, kept = msgspec.json.decode(file.read_bytes(), type=tuple[str, dict[str, Read[kind]]])  # type: ignore[valid-type]
            return kept if form == _FORM else {}
    return {}


def _keep(file: Path, read: Iterable[tuple[str, Read[T]]]) -> None:
    with suppress(OSError, UnicodeEncodeError):  # the next start reads them again
        make_private_folder(file.parent)
        replace_file(file, msgspec.json.encode((_FORM, dict(read))), syncs=False)


MOST_FOLDERS = 2_000  # of one place
_DEEPEST = 4
_BYTES_PER_TOKEN = 3  # of prose; few tokenizers make more of it
_LONGEST_TOLD = 1_024  # characters of a description
_PASSED_OVER = frozenset((".git", "node_modules", "__pycache__"))
_HEAD = """\
# Skills
When a task fits one of these, call `skill` with its name first: it gives instructions for such tasks.
"""


class Place(Struct, frozen=True):
    """A folder of skills. One with a `root` holds only what lies below that, links followed."""

    folder: Path
    source: Source
    root: Path | None = None


class LeftOut(Struct, frozen=True):
    """A skill that cannot be used, and why."""

    folder: str
    why: str


class Catalog:
    """Skills by name; of two with one name the first counts, and the other is `shadowed`.

    `fresh` are those that were read now, not taken from the cache: what is odd about them is told once.
    """

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


def find_skills(places: Sequence[Place], cache: Path | None) -> Catalog:
    """The skills of all places, the first counting most. What cannot be read is left out, and so told."""
    skills: list[Skill] = []
    left_out: list[LeftOut] = []
    fresh: list[Skill] = []
    for place in places:
        files = dict(_files_in(place))
        if not files:
            continue
        read, new = read_once(files, Skill, partial(read_skill, source=place.source), cache, place.folder)
        for folder, one in read.items():
            if one.value is None:
                left_out.append(LeftOut(folder, one.problem))
                continue
            skills.append(one.value)
            fresh += [one.value] if folder in new else []
    return Catalog(skills, left_out, fresh)


def listing(skills: Sequence[Skill], most_tokens: int) -> str:
    """The text that tells a model of skills (level 1); empty where there is none.

    Where that is too long the descriptions are cut, all to one length; then only names are told, and then not all.
    """
    if not skills:
        return ""
    most = most_tokens * _BYTES_PER_TOKEN - len(_HEAD)
    shortest, longest = 0, _LONGEST_TOLD
    if _size(skills, longest) > most:
        while longest - shortest > 1:
            middle = (shortest + longest) // 2
            shortest, longest = (middle, longest) if _size(skills, middle) <= most else (shortest, middle)
        longest = shortest
    lines: list[str] = []
    for told, skill in enumerate(skills):
        line = _line(skill, longest)
        most -= len(line.encode()) + 1
        if most < 0 and told:
            lines.append(f"({len(skills) - told} more: skill with level 1 and a word for its name looks for one)")
            break
        lines.append(line)
    return _HEAD + "\n".join(lines)


def _size(skills: Sequence[Skill], longest: int) -> int:
    return sum(len(_line(skill, longest).encode()) + 1 for skill in skills)


def _line(skill: Skill, longest: int) -> str:
    told = skill.description if len(skill.description) <= longest else f"{skill.description[: longest - 1].rstrip()}…"
    return f"- {skill.name}: {told}" if longest else f"- {skill.name}"


def _files_in(place: Place) -> Iterator[tuple[str, Stamp]]:
    """The folders with a SKILL.md, in the order of their names, and what tells when that file has changed."""
    root = os.path.realpath(place.root) if place.root is not None else None
    waiting = [(str(place.folder), 0)]
    looked_at = 0
    while waiting and looked_at < MOST_FOLDERS:
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
        if depth < _DEEPEST:
            with suppress(OSError), os.scandir(folder) as entries:
                inside = [entry.path for entry in entries if entry.name not in _PASSED_OVER and entry.is_dir()]
                waiting += [(path, depth + 1) for path in sorted(inside, reverse=True)]
