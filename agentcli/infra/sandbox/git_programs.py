"""Finds the programs that a repository's own configuration makes git run, even for a command that only reads.

A command that made a repository, or an archive that brought one, chose them; the person did not. The keys are those of
git-config(1) and gitattributes(5), git 2.47, and of githooks(5) the one hook that a reading command may run.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from agentcli.infra.sandbox.git_config import Setting
from agentcli.infra.sandbox.git_folders import looks_like_the_inside
from agentcli.infra.sandbox.git_named_paths import settings_of, text_of
from agentcli.infra.sandbox.repositories import Repositories

_TRUE = frozenset((None, "true", "yes", "on", "1"))
_FALSE = frozenset(("", "false", "no", "off", "0"))
_LFS = re.compile(r"git-lfs (clean|smudge|filter-process)( --skip)?( -- %f)?")
_REFRESHES_INDEX = "post-index-change"  # git status and git diff write what they learned of the files
_MOST_NESTED = 200


def program_setting(folder: Path, home: str, repositories: Repositories) -> str:
    """Name a setting by which git, started in `folder`, may run a program of the repository's choosing.

    Empty where there is none. Repositories below count too, because git looks into those that it knows as submodules.
    """
    worktree, git = _repository_around(str(folder))
    if git is None:
        return ""
    found = _program_setting(git, worktree, home)
    for nested in repositories.inside(worktree)[:_MOST_NESTED]:
        if found:
            break
        inside = _git_folder(nested)
        found = _program_setting(inside, nested, home) if inside is not None else ""
    return found


def _repository_around(folder: str) -> tuple[str, str | None]:
    """The worktree that git finds from a folder upwards, and its git folder; None where there is no repository."""
    for place in (folder, *map(str, Path(folder).parents)):
        if (git := _git_folder(place)) is not None:
            return place, git
    return folder, None


def _git_folder(place: str) -> str | None:
    link = f"{place}/.git"
    if Path(link).is_dir():
        return link
    if text := text_of(link).removeprefix("gitdir:").strip():
        return os.path.normpath(Path(place, text))
    return place if looks_like_the_inside(place) else None


def _program_setting(git: str, worktree: str, home: str) -> str:
    common = text_of(f"{git}/commondir").strip()
    files = [os.path.normpath(Path(git, common, "config")), f"{git}/config.worktree"]
    settings = list(settings_of(files, home))
    fetches = any(_may_fetch(setting) for setting in settings)
    for setting in settings:
        if _starts_a_program(setting) or (fetches and _starts_a_program_to_fetch(setting)):
            name = ".".join(filter(None, (setting.section, setting.subsection, setting.key)))
            return f"{name} in {files[0] if git == str(Path(files[0]).parent) else git}"
    hooks = [str(Path(files[0]).parent / "hooks"), *(s.value for s in settings if s.key == "hookspath" and s.value)]
    found = (Path(worktree, Path(folder).expanduser(), _REFRESHES_INDEX) for folder in hooks)
    return next((str(hook) for hook in found if hook.exists()), "")


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
    return False


def _may_fetch(setting: Setting) -> bool:
    """True for a partial clone, which fetches what is missing when it is read."""
    return (setting.section, setting.key) in (("remote", "promisor"), ("extensions", "partialclone"))


def _starts_a_program_to_fetch(setting: Setting) -> bool:
    match setting:
        case Setting("core", "", "sshcommand" | "gitproxy" | "askpass") | Setting("credential", _, "helper"):
            return True
        case Setting("remote", _, "uploadpack" | "vcs"):
            return True
        case Setting("remote", _, "url", str(value)):
            return value.startswith("ext::")
    return False
