"""Confines commands on macOS, through `sandbox-exec` and a profile in its own language.

Rules are read from the top and the last one that matches counts. Names are compared without their case, because the
disk does not tell `.GIT` from `.git`; `/tmp`, `/var` and `/etc` are links into `/private`, and rules are about real
paths. There is no private network, no process namespace and no private /tmp here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agentcli.infra.sandbox.confinement import Bounds, Launch
from agentcli.tools.command import Profile

PROGRAM = Path("/usr/bin/sandbox-exec")

_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/dtracehelper")
# Parts of every git folder that make git run programs, or look elsewhere for what does.
_IN_GIT_FOLDER = ("hooks", "config", "config.worktree", "info", "commondir", "gitdir")


class Seatbelt:
    """Implements `Confinement`. `tmp` is the person's TMPDIR, which commands share."""

    name = "seatbelt"
    weakness = ""
    keeps_names = True
    hides_in: tuple[Profile, ...] = ("read-only", "workspace-write")
    why = ""

    def __init__(self, tmp: Path, program: Path = PROGRAM) -> None:
        self._tmp = tmp
        self._program = program

    @contextmanager
    def launch(
        self, argv: Sequence[str], *, cwd: Path, bounds: Bounds, pass_fds: Sequence[int] = ()
    ) -> Iterator[Launch]:
        yield Launch(
            [str(self._program), "-p", seatbelt_profile(bounds, tmp=self._tmp), *argv],
            tuple(pass_fds),
            {"TMPDIR": str(self._tmp)},
        )

    def limits(self, bounds: Bounds) -> tuple[str, ...]:
        proxy = ("Commands reach no host, granted or not.",) if bounds.resources.proxy_socket is not None else ()
        return (
            "Processes that a command leaves behind are not ended with it.",
            "Commands share your temporary folder and can see your other processes.",
            *proxy,
        )


def seatbelt_profile(bounds: Bounds, *, tmp: Path) -> str:
    """Return the profile for `read-only` and `workspace-write`."""
    may_write = bounds.profile == "workspace-write"
    writable = [*(bounds.roots if may_write else ()), *(bounds.writable if may_write else ()), tmp]
    writable += [bounds.resources.cache] if bounds.resources.cache is not None else []
    rules = [
        "(version 1)",
        "(allow default)",
        "(deny network*)",
        "(deny appleevent-send)",  # asking another program to do it
        "(deny lsopen)",
        "(deny signal)",
        "(allow signal (target same-sandbox))",
        "(deny process-info* (target others))",
        "(deny file-write*)",
        _rule("allow file-write*", [f"(literal {_quoted(device)})" for device in _DEVICES]),
        _rule("allow file-write*", _below(writable)),
    ]
    if may_write:
        rules += _protections(bounds)
    rules += [
        _rule("deny file-read*", _below(bounds.masked)),
        _rule("allow file-read*", _below(bounds.readable_again)),
        _rule("deny file-write*", _below(bounds.masked)),
    ]
    return "\n".join(rule for rule in rules if rule) + "\n"


def _protections(bounds: Bounds) -> list[str]:
    """Protect names in the roots, and the folders above them from being renamed with what is in them."""
    rules = []
    git = _without_case(".git")
    in_git = "|".join(map(_without_case, _IN_GIT_FOLDER))
    for root in bounds.roots:
        for path in _spellings(root):
            inside = _without_case(path.rstrip("/"))
            protected = [os.path.join(path, name) for name in bounds.protected]  # noqa: PTH118  # an absolute one stays
            patterns = [f"^{_without_case(each)}(/|$)" for each in protected if each.startswith(path.rstrip("/") + "/")]
            patterns.append(f"^{inside}/(.*/)?{git}/((modules|worktrees)/.*/)?({in_git})(/|$)")
            rules.append(_rule("deny file-write*", [f"(regex {_pattern(pattern)})" for pattern in patterns]))
            parents = [path, *(str(parent) for parent in Path(path).parents if str(parent) != "/")]
            unlinked = [f"(literal {_quoted(parent)})" for parent in parents]
            unlinked.append(f"(regex {_pattern(f'^{inside}/(.*/)?{git}$')})")
            rules.append(_rule("deny file-write-unlink", unlinked))
    return [*rules, _rule("allow file-write*", _below(bounds.writable))]


def _below(folders: Sequence[Path]) -> list[str]:
    return [f"(subpath {_quoted(path)})" for folder in folders for path in _spellings(folder)]


def _rule(what: str, filters: Sequence[str]) -> str:
    """Return one rule, or nothing without a filter, because it would be about everything."""
    return f"({what}\n  " + "\n  ".join(dict.fromkeys(filters)) + ")" if filters else ""


def _spellings(path: Path) -> list[str]:
    """Return a path and its real name; it need not exist."""
    text = os.path.normpath(path)
    for name in ("/tmp", "/var", "/etc"):  # noqa: S108  # names of links
        if text == name or text.startswith(name + "/"):
            return [text, "/private" + text]
    return [text, text.removeprefix("/private")] if text.startswith("/private/") else [text]


def _without_case(text: str) -> str:
    """Return a pattern for a text in any case, for which the language has no flag."""
    return "".join(f"[{c.lower()}{c.upper()}]" if c.lower() != c.upper() else re.escape(c) for c in text)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _pattern(text: str) -> str:
    return '#"' + text.replace('"', '\\"') + '"'
