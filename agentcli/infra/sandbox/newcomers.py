"""What a command has made that other programs obey by themselves.

Of the names a project does not have, only the few that count most are kept from being made: each of them costs a mount
and an empty folder. The others are looked for when the command has ended, so that the person learns of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from agentcli.infra.sandbox.mount_points import is_mount_point_of_ours
from agentcli.small_files import read_small_file
from agentcli.tools.path_kinds import PROTECTED_NAMES

# What `git init`, `clone` and `remote add` write, and a name and address: nothing of it starts a program.
_HARMLESS_SECTION = re.compile(r'\[(?:user|init|(?:remote|branch)(?: "[^"\\]*")?)\]', re.IGNORECASE)
_HARMLESS_CORE = re.compile(
    r"(?:repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks|autocrlf|eol)\s*="
    r"|(?:name|email|defaultbranch|url|fetch|remote|merge|rebase)\s*=",
    re.IGNORECASE,
)
_RUNS_A_HELPER = re.compile(r"=\s*ext::", re.IGNORECASE)


def not_there(roots: Iterable[Path]) -> list[Path]:
    """The names of a workspace that may yet appear."""
    return [path for root in roots for name in PROTECTED_NAMES if not _is_there(path := root / name)]


def appeared(paths: Sequence[Path]) -> list[Path]:
    """Those that are there by now; a repository only where it would start programs."""
    there = [path for path in paths if _is_there(path)]
    return [path for path in there if path.name != ".git" or starts_programs(path)]


def starts_programs(git: Path) -> bool:
    """Whether git would start something for a repository, as its hooks and settings say; what is unusual counts."""
    try:
        if any(not hook.name.endswith(".sample") for hook in (git / "hooks").iterdir()):
            return True
    except OSError:
        pass
    try:
        lines = read_small_file(git / "config").decode().splitlines()
    except (OSError, UnicodeDecodeError):
        return git.is_file() or (git / "config").exists()
    settings = [line.strip() for line in lines if line.strip()]
    return any(
        _RUNS_A_HELPER.search(line)
        or not (line == "[core]" or _HARMLESS_SECTION.fullmatch(line) or _HARMLESS_CORE.match(line))
        for line in settings
    )


def _is_there(path: Path) -> bool:
    return os.path.lexists(path) and not is_mount_point_of_ours(str(path))
