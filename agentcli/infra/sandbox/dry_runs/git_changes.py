"""Describes what a dry run did to a repository: refs that moved, commits, the index, what was lost.

Git itself is asked, in the sandbox: before and after, and for the diffs. It runs nothing that a repository configures.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from typing import NamedTuple

MAX_REFS = 10
MAX_COMMITS = 20
LARGEST_DIFF = 200_000  # bytes

_GIT = "git -c core.hooksPath=/dev/null -c core.pager=cat --no-pager"
_DIFF = "diff --no-ext-diff --no-textconv --no-color"
_LOST, _MARKS = "== lost", ("== HEAD", "== staged", "== stash")

# What git adds to a unified diff.
_GITS_OWN = ("diff --git ", "index ", "new file mode ", "deleted file mode ")

# Runs a shell script where the repository is, as it was or as it is now, and gives its output.
Look = Callable[[str], Awaitable[str]]


class GitChanges(NamedTuple):
    """The changes as text, and what cannot be had back once they are applied. What `is_same` is so for git.

    `uncommitted` are the files below the worktree that held work which was in no commit, `reverted` those of them that
    are as in the last commit of before, so that the work is gone.
    """

    text: str
    lost: tuple[str, ...]
    is_same: bool
    uncommitted: frozenset[str]
    reverted: frozenset[str]


class _RepositoryState(NamedTuple):
    """The refs and stashes, by name and by commit, and what HEAD and the index say."""

    refs: dict[str, str]
    head: str
    staged: list[str]
    stash: dict[str, str]

    @property
    def commit(self) -> str:
        return self.refs.get(self.head, "" if self.head.startswith("refs/") else self.head)


async def describe_git_changes(folder: str, look_before: Look, look_after: Look) -> GitChanges:
    """Describe what changed in the repository whose `.git` is `folder`."""
    git = f"{_GIT} --git-dir={shlex.quote(folder)}"
    before, after = await _state(git, look_before), await _state(git, look_after)
    dirty, others = await _uncommitted(look_before)
    still = (await look_after(_changed_script(before.commit))).split("\0") if dirty else []
    work = (dirty | others, dirty.difference(still))
    if before == after:
        return GitChanges("", (), True, *work)
    lines = [f"HEAD: {_short(before.head)} → {_short(after.head)}"] if before.head != after.head else []
    lost: list[str] = []
    moved = [name for name in {**before.refs, **after.refs} if before.refs.get(name) != after.refs.get(name)]
    for name in moved[:MAX_REFS]:
        old, new = before.refs.get(name, ""), after.refs.get(name, "")
        log = f"{git} log --no-color --no-decorate --oneline -n {MAX_COMMITS}"
        made = f"{log} {new} --not {old} 2>/dev/null; " if new else ""
        gone = f"{log} {old} --not --all HEAD 2>/dev/null; " if old else ""
        own, _, others_lost = (await look_after(f"{made}echo '{_LOST}'; {gone}true")).partition(f"{_LOST}\n")
        lines.append(f"{_short(name)}: {old[:7] or 'none'} → {new[:7] or 'none'}")
        lines += [f"  + {line}" for line in own.splitlines()]
        lost += [f"commit {line}" for line in others_lost.splitlines()]
    if len(moved) > MAX_REFS:
        lines.append(f"… {len(moved) - MAX_REFS} more refs")
    lost += [f"stash {title}" for commit, title in before.stash.items() if commit not in after.stash]
    if before.staged != after.staged:
        staged = [f"staged: {line.partition(' ')[2].split(' ', 3)[-1]}" for line in after.staged]
        lines += staged or ["nothing is staged any more"]
    lines += [f"lost: {line}" for line in lost]
    is_other = before.commit and after.commit and before.commit != after.commit
    between = f"{git} {_DIFF} {before.commit} {after.commit}; " if is_other else ""
    shown = await look_after(f"({between}{git} {_DIFF} --cached) 2>/dev/null | head -c {LARGEST_DIFF}; true")
    diff = "\n".join(line for line in shown.splitlines() if not line.startswith(_GITS_OWN))
    return GitChanges("\n".join([*lines, diff]).rstrip() + "\n", tuple(lost), False, *work)


async def uncommitted_files(look: Look) -> frozenset[str]:
    """The files below a folder that hold what no commit has, as paths below it. What git ignores is not among them."""
    dirty, others = await _uncommitted(look)
    return dirty | others


async def _uncommitted(look: Look) -> tuple[frozenset[str], frozenset[str]]:
    """The files that git knows, and those that it neither knows nor ignores."""
    unknown = f"{_GIT} ls-files -z --others --exclude-standard"
    script = f"{_changed_script('')}; printf '== others\\0'; {unknown} 2>/dev/null; true"
    tracked, _, others = (await look(script)).partition("== others\0")
    return frozenset(tracked.split("\0")) - {""}, frozenset(others.split("\0")) - {""}


async def _state(git: str, look: Look) -> _RepositoryState:
    head, staged, stash = _MARKS
    output = await look(
        f"{git} for-each-ref --format='%(refname) %(objectname)'; echo '{head}'"
        f"; {git} symbolic-ref -q HEAD || {git} rev-parse -q --verify HEAD; echo '{staged}'"
        f"; {git} {_DIFF} --cached --raw --abbrev; echo '{stash}'; {git} stash list --format='%H %gd %gs'; true"
    )
    parts = []
    for mark in _MARKS:
        part, _, output = output.partition(f"{mark}\n")
        parts.append(part.splitlines())
    refs, stashes = ((line.partition(" ") for line in lines) for lines in (parts[0], output.splitlines()))
    by_ref, by_commit = ({key: rest for key, _, rest in pairs} for pairs in (refs, stashes))
    return _RepositoryState(by_ref, "".join(parts[1]), parts[2], by_commit)


def _changed_script(commit: str) -> str:
    """Files of the worktree that differ from a commit."""
    return f"{_GIT} diff --no-ext-diff --name-only --relative -z {commit or 'HEAD'} 2>/dev/null; true"


def _short(name: str) -> str:
    return name.removeprefix("refs/heads/").removeprefix("refs/")[:60]
