"""Finds the programs that a repository's own configuration makes git run, even for a command that only reads.

A command that made a repository, or an archive that brought one, chose them; the person did not. The keys are those of
git-config(1) and gitattributes(5), git 2.47, and of githooks(5) the one hook that a reading command may run.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from agentcli.infra.sandbox.git.config import Setting
from agentcli.infra.sandbox.git.folders import MOST_MODULES, looks_like_the_inside, modules_in
from agentcli.infra.sandbox.git.index import submodules_in
from agentcli.infra.sandbox.git.named_paths import are_understood, path_in, read_telling, settings_of, text_of
from agentcli.infra.sandbox.git.repositories import Repositories

_TRUE = frozenset((None, "true", "yes", "on", "1"))
_FALSE = frozenset(("", "false", "no", "off", "0"))
_LFS = re.compile(r"git-lfs (clean|smudge|filter-process)( --skip)?( -- %f)?")
_SIGNATURE = re.compile(r"%[-+ ]?G")
_HOOKS = ("post-index-change",)  # git status and git diff write what they learned of the files
_HOOKS_OF_FETCHING = ("reference-transaction", "pre-auto-gc")
_HEAD = re.compile(r"ref:[ \t\r\n]*refs/|[0-9a-fA-F]{40}")
_LONGEST_HEAD = 255  # git reads no more
_MOST_NESTED = 200
_MOST_REPOSITORIES = 1_000


def program_setting(folder: Path, home: str, repositories: Repositories) -> str:
    """Name a setting by which git, started in `folder`, may run a program of the repository's choosing.

    Empty where there is none. Submodules count too, because git looks into them, and so do other repositories below:
    an old commit may have one as a submodule. What is too much or too odd to look at counts as such a setting.
    """
    found = _repositories_around(str(folder), home)
    found += [
        _Repository(git, nested, home)
        for around in tuple(found)
        for nested in repositories.inside(around.worktree)[:_MOST_NESTED]
        for git in _git_folders(nested)
    ]
    seen = set()
    for repository in found:  # it grows meanwhile
        if (place := (repository.git, repository.worktree)) in seen:
            continue
        seen.add(place)
        if len(seen) > _MOST_REPOSITORIES:
            return "one of more submodules than are looked at"
        if why := repository.program():
            return why
        submodules = repository.submodules()
        if submodules is None:
            return f"one of a submodule that {repository.git} may have"
        found += submodules
    return ""


def _repositories_around(folder: str, home: str) -> list[_Repository]:
    """The repository that git finds from a folder upwards, past folders that only look like one."""
    found = []
    for place in (folder, *map(str, Path(folder).parents)):
        for git in _git_folders(place):
            found.append(_Repository(git, place, home))
            if found[-1].is_sound():
                return found
    return found


def _git_folders(place: str) -> list[str]:
    """Folders that git, started here, may take for a repository's own, in its order."""
    link = f"{place}/.git"
    git = link if os.path.isdir(link) else path_in(link, "gitdir: ")  # noqa: PTH112  # a Path raises where it is too long
    return [*([git] if git is not None else []), *([place] if looks_like_the_inside(place) else [])]


class _Repository:
    """`git` is its own folder, `worktree` where its files are unless its configuration says otherwise."""

    def __init__(self, git: str, worktree: str, home: str) -> None:
        self.git = git
        self.worktree = worktree
        self._home = home
        self._common = path_in(f"{git}/commondir") or git
        self._files = [f"{self._common}/config", f"{git}/config.worktree"]
        self._settings = list(settings_of(self._files, home))

    def is_sound(self) -> bool:
        head = f"{self.git}/HEAD"
        has_all = all(os.access(f"{self._common}/{name}", os.X_OK) for name in ("objects", "refs"))
        try:
            is_head = str(Path(head).readlink()).startswith("refs/")
        except OSError:  # no link
            is_head = _HEAD.match(text_of(head)[:_LONGEST_HEAD]) is not None
        return has_all and is_head

    def program(self) -> str:
        """The setting or the hook by which git may run a program."""
        if not are_understood([*self._files, f"{self.git}/commondir"]):
            return f"one in {self._files[0]}, which git may read otherwise than agentcli"
        fetches = any(_may_fetch(setting) for setting in self._settings)
        for setting in self._settings:
            if _starts_a_program(setting) or (fetches and _starts_a_program_to_fetch(setting)):
                name = ".".join(filter(None, (setting.section, setting.subsection, setting.key)))
                return f"{name} in {self._files[0] if self.git == self._common else self.git}"
        folders = (f"{self._common}/hooks", *(s.value for s in self._settings if s.key == "hookspath" and s.value))
        names = (*_HOOKS, *(_HOOKS_OF_FETCHING if fetches else ()))
        starts = (
            Path(place, os.path.expanduser(folder))  # noqa: PTH111  # a Path raises where there is no such user
            for folder in folders
            for place in self._worktrees()
        )
        return next((str(start / name) for start in starts for name in names if os.path.lexists(start / name)), "")

    def submodules(self) -> list[_Repository] | None:
        """Submodules that the index and `.gitmodules` name or git keeps; None where that cannot be told."""
        own = read_telling(text_of(f"{self._common}/config"))  # what it includes does not count
        is_sha256 = any((s.section, s.key, s.value) == ("extensions", "objectformat", "sha256") for s in own)
        paths = submodules_in(f"{self.git}/index", hash_size=32 if is_sha256 else 20)
        kept = [*modules_in(f"{self.git}/modules"), *modules_in(f"{self._common}/modules")]
        if paths is None or len(kept) > MOST_MODULES:
            return None
        places = (
            f"{worktree}/{path}"
            for worktree in self._worktrees()
            for path in (*paths, *_named_submodules(f"{worktree}/.gitmodules"))
        )
        there = [_Repository(git, place, self._home) for place in dict.fromkeys(places) for git in _git_folders(place)]
        return there + [_Repository(module, module, self._home) for module in dict.fromkeys(kept)]

    def _worktrees(self) -> list[str]:
        told = (s.value for s in self._settings if (s.section, s.key) == ("core", "worktree") and s.value)
        return list(dict.fromkeys((self.worktree, *(str(Path(self.git, value)) for value in told))))


def _named_submodules(file: str) -> list[str]:
    found = read_telling(text_of(file))
    return [setting.value for setting in found if setting.key == "path" and setting.value]


def _starts_a_program(setting: Setting) -> bool:
    match setting:
        case Setting("core", "", "fsmonitor", value):
            return value not in _TRUE and value not in _FALSE
        case Setting("diff", "", "external", value) | Setting("diff", _, "command" | "textconv", value):
            return bool(value)
        case Setting("filter", _, "clean" | "smudge" | "process", value):
            return bool(value) and not _LFS.fullmatch(value or "")
        case Setting("merge", _, "driver", value) | Setting("man" | "browser", _, "cmd" | "path", value):
            return bool(value)
        case Setting("log", "", "showsignature", value):
            return value not in _FALSE
        case Setting("gpg", _, "program") | Setting("hook", _, "command"):
            return True
        case Setting("format", "", "pretty", str(value)) | Setting("pretty", _, _, str(value)):
            return _SIGNATURE.search(value) is not None
        case Setting("branch" | "tag", "", "sort", str(value)):
            return "signature" in value
        case Setting("include" | "includeif", _, "path", str(value)):  # places that only git knows
            return value.startswith(("~", "%(prefix)")) and not value.startswith("~/")
    return False


def _may_fetch(setting: Setting) -> bool:
    """True for a partial clone, which fetches what is missing when it is read."""
    return (setting.section, setting.key) in (("remote", "promisor"), ("extensions", "partialclone"))


def _starts_a_program_to_fetch(setting: Setting) -> bool:
    match setting:
        case Setting("core", "", "sshcommand" | "gitproxy" | "askpass" | "alternaterefscommand") | Setting(
            "credential", _, "helper"
        ):
            return True
        case Setting("remote", _, "uploadpack" | "vcs") | Setting("gc", "", "recentobjectshook"):
            return True
        case Setting("remote", _, "url", str(value)) | Setting("url", value, "insteadof"):
            return value.startswith("ext::")
        case Setting("protocol", "" | "ext", "allow"):
            return True
    return False
