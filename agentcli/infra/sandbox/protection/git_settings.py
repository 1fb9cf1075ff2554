"""Compares git configurations by the settings that could start a program or lead elsewhere."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from agentcli.infra.sandbox.git.config import Setting, read_configuration

# Nothing in these means more to git, ssh or a shell than it says; a branch may have a sign of its own.
_WHO = r"(?:\w[\w.+%-]*(?::[\w.+%-]*)?@)?"
_HOST = r"[^\W_][\w.-]*"
_REMOTE_ADDRESS = re.compile(
    rf"(?:https?|ssh|git)://{_WHO}{_HOST}(?::\d+)?(?:/[\w.~+%@,=/-]*)?|\w[\w.+-]*@{_HOST}:[\w.~/][\w.~+%@,=/-]*",
    re.ASCII,
)
_FETCHED = re.compile(r"\+?refs/[\w.*/-]+:refs/(?:remotes|tags)/[\w.*/-]+")
_NAME = re.compile(r"\w[\w./@#+-]*")


def adds_only_remotes(before: bytes, now: bytes) -> bool:
    """True for a git configuration in which no more changed than `git push -u` and `git remote add` write."""
    if b"\0" in now:
        return False
    mine, its = (read_configuration(os.fsdecode(content)) for content in (before, now))
    remotes = {setting.subsection for setting in mine.settings if setting.section == "remote"}
    added = {setting.subsection for setting in its.settings if setting.section == "remote"} - remotes
    return not its.is_refused and _telling(mine.settings, added) == _telling(its.settings, added)


def _telling(settings: Sequence[Setting], added: set[str]) -> list[Setting]:
    """Return the settings that could start a program or redirect a push or fetch, except those of `added` remotes."""
    # The name of one without an address is its address.
    remotes = {setting.subsection for setting in settings if (setting.section, setting.key) == ("remote", "url")}

    def is_new(name: str) -> bool:
        return name in added and _NAME.fullmatch(name) is not None

    def is_harmless(setting: Setting) -> bool:
        match setting:
            case Setting("user", "", "name" | "email"):
                return True
            case Setting("branch", name, "merge" | "rebase" | "description"):
                return _NAME.fullmatch(name) is not None
            case Setting("branch", name, "remote" | "pushremote", value):
                return _NAME.fullmatch(name) is not None and (value == "." or value in remotes)
            case Setting("remote", name, "fetch", str(value)):
                return is_new(name) and _FETCHED.fullmatch(value) is not None
            case Setting("remote", name, "url", str(value)):
                return is_new(name) and _REMOTE_ADDRESS.fullmatch(value) is not None
        return False

    return [setting for setting in settings if not is_harmless(setting)]
