"""Finds the programs that a repository's own configuration makes git run, even for a command that only reads.

A command that made a repository, or an archive that brought one, chose them; the person did not. Git itself is asked,
in the environment of commands, and refuses or finds a repository here as it would there. The keys are those of
git-config(1) and gitattributes(5), git 2.47, and of githooks(5) the one hook that a reading command may run.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentcli.infra.sandbox.git.config import Setting, parse_setting
from agentcli.infra.sandbox.git.folders import modules_in
from agentcli.infra.sandbox.scan import Scan

_BOOLEANS = frozenset((None, "", "true", "yes", "on", "1", "false", "no", "off", "0"))
_FALSE = frozenset(("", "false", "no", "off", "0"))
# A partial clone fetches what is missing when it is read, with programs of many settings.
_PROGRAMS = frozenset(
    "diff.external diff.command diff.textconv filter.clean filter.smudge filter.process merge.driver man.cmd man.path"
    " browser.cmd browser.path gpg.program hook.command remote.promisor extensions.partialclone".split()
)
_LFS = re.compile(r"git-lfs (clean|smudge|filter-process)( --skip)?( -- %f)?")
_SIGNATURE = re.compile(r"%[-+ ]?G")
_HOOK = "post-index-change"  # git status and git diff write what they learned of the files
_MAX_REPOSITORIES = 50
_MAX_GIT_S = 2.0
# Whatever is found, nothing is fetched and nothing written meanwhile.
_LOOKS_ONLY = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}


class ProgramSearch:
    """Asks the program `git`; `scan` finds repositories that the index does not name."""

    def __init__(self, git: str, environment: Mapping[str, str], scan: Scan) -> None:
        self._git = git
        self._environment = {**environment, **_LOOKS_ONLY}
        self._scan = scan

    def setting(self, folder: Path) -> str:
        """Name a setting by which git, started in `folder`, may run a program of the repository's choosing.

        Empty where there is none. Submodules count too, because git looks into them, and so do other repositories
        below: an old commit may have one as a submodule. What is too much to look at counts as such a setting.
        """
        if not self._git:
            return "one that cannot be looked for, because git is not installed"
        waiting = [("-C", str(folder))]
        seen: set[str] = set()
        try:
            while waiting:
                where = waiting.pop()
                found = self._ask(where, "rev-parse", "--absolute-git-dir", "--git-common-dir")
                if found is None or found in seen:  # no repository: git runs nothing either
                    continue
                seen.add(found)
                if len(seen) > _MAX_REPOSITORIES:
                    return "one of more repositories than are looked at"
                own, common = found.splitlines()
                common = os.path.realpath(Path(where[1], common))
                top = (self._ask(where, "rev-parse", "--show-toplevel") or own).removesuffix("\n")
                if program := self._program(where, common, top):
                    return program
                nested = self._nested(where, top)
                if nested is None:
                    return f"one of more repositories than are looked at in {top}"
                waiting += [("-C", place) for place in nested if os.path.lexists(f"{place}/.git")]
                modules = {module for kept in (own, common) for module in modules_in(f"{kept}/modules")}
                waiting += [("--git-dir", module) for module in modules]
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            return f"one that cannot be looked for: {error}"
        return ""

    def _program(self, where: tuple[str, str], common: str, top: str) -> str:
        listed = self._ask(where, "config", "--list", "--null", "--show-scope")
        if listed is None:
            return f"one in {common}/config, which git does not list"
        hooks = [f"{common}/hooks"]
        words = listed.split("\0")
        for scope, text in zip(words[::2], words[1::2], strict=False):
            setting = parse_setting(text)
            if scope not in ("local", "worktree"):  # those of the person and the machine are theirs
                continue
            if _starts_a_program(setting):
                return f"{text.partition(chr(10))[0]} in {common}/config"
            if setting.key == "hookspath" and setting.value:
                hooks.append(os.path.expanduser(setting.value))  # noqa: PTH111  # a Path raises where there is no such user
        found = (Path(start, folder, _HOOK) for folder in hooks for start in (top, common))
        return next((str(hook) for hook in found if os.path.lexists(hook)), "")

    def _nested(self, where: tuple[str, str], top: str) -> Sequence[str] | None:
        """Return the folders that may hold submodules; None where there are too many folders."""
        listed = self._ask(where, "ls-files", "--stage", "-z", "--full-name", ":/") or ""
        links = [entry.partition("\t")[2] for entry in listed.split("\0") if entry.startswith("160000 ")]
        found = [*(f"{top}/{link}" for link in links), *self._scan.repositories(top)]
        return None if self._scan.is_partial(top) else found

    def _ask(self, where: tuple[str, str], *arguments: str) -> str | None:
        """Return what git says; None where it refuses. Raises `OSError` and `SubprocessError`."""
        done = subprocess.run(
            [self._git, *where, *arguments],
            cwd="/",
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_MAX_GIT_S,
            check=False,
        )
        return None if done.returncode else os.fsdecode(done.stdout)


def _starts_a_program(setting: Setting) -> bool:
    match setting:
        case Setting("core", "", "fsmonitor", value):
            return value not in _BOOLEANS
        case Setting("filter", _, _, str(value)) if _LFS.fullmatch(value):
            return False
        case Setting("log", "", "showsignature", value):
            return value not in _FALSE
        case Setting("format", "", "pretty", str(value)) | Setting("pretty", _, _, str(value)):
            return _SIGNATURE.search(value) is not None
        case Setting("branch" | "tag", "", "sort", str(value)):
            return "signature" in value
        case _:
            return f"{setting.section}.{setting.key}" in _PROGRAMS
