"""Says in git's words what a tried command did to a repository: refs that moved, commits, the index, what was lost.

Git itself is asked, in the sandbox: before and after, and for the diffs. It runs nothing that a repository configures.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from typing import NamedTuple

MOST_REFS = 10
MOST_COMMITS = 20
LARGEST_DIFF = 200_000  # bytes

_GIT = "git -c core.hooksPath=/dev/null -c core.pager=cat --no-pager"
_DIFF = "diff --no-ext-diff --no-textconv --no-color"
_OTHERS = "== others\0"
_HEAD, _STAGED, _STASH = "== HEAD", "== staged", "== stash"

# What git adds to a unified diff.
_GITS_OWN = ("diff --git ", "index ", "new file mode ", "deleted file mode ")

# Runs a shell script where the repository is, as it was or as it is now, and gives its output.
Look = Callable[[str], Awaitable[str]]


class GitChanges(NamedTuple):
    """The changes as text, and what cannot be had back once they are kept. What `is_same` is so for git."""

    text: str
    lost: tuple[str, ...]
    is_same: bool = False
    uncommitted: frozenset[str] = frozenset()
    """Files that held work which was in no commit, as paths below the worktree."""
    reverted: frozenset[str] = frozenset()
    """Those of them that are as in the last commit of before, so that the work is gone."""


class _State(NamedTuple):
    refs: dict[str, str]
    head: str
    staged: list[str]
    stash: list[str]


async def describe_git_changes(folder: str, look_before: Look, look_after: Look) -> GitChanges:
    """What changed in the repository whose `.git` is `folder`."""
    before = _read(await look_before(_state_script(folder)))
    after = _read(await look_after(_state_script(folder)))
    moved = [
        name for name in dict.fromkeys((*before.refs, *after.refs)) if before.refs.get(name) != after.refs.get(name)
    ]
    lines: list[str] = []
    lost: list[str] = []
    dirty, others = await _uncommitted(look_before)
    still = (await look_after(_changed_script(_commit(before)))).split("\0") if dirty else []
    work = (dirty | others, dirty.difference(still))
    if before == after:
        return GitChanges("", (), True, *work)
    if before.head != after.head:
        lines.append(f"HEAD: {_short(before.head)} → {_short(after.head)}")
    for name in moved[:MOST_REFS]:
        old, new = before.refs.get(name, ""), after.refs.get(name, "")
        said = await look_after(_ref_script(folder, old, new))
        made, _, gone = said.partition("== lost\n")
        lines.append(f"{_short(name)}: {old[:7] or 'none'} → {new[:7] or 'none'}")
        lines += [f"  + {line}" for line in made.splitlines()]
        lost += [f"commit {line}" for line in gone.splitlines()]
    if len(moved) > MOST_REFS:
        lines.append(f"… {len(moved) - MOST_REFS} more refs")
    lost += [
        f"stash {line.partition(' ')[2]}" for line in before.stash if _content(line) not in map(_content, after.stash)
    ]
    if before.staged != after.staged:
        lines += [f"staged: {line.partition(' ')[2].split(' ', 3)[-1]}" for line in after.staged] or [
            "nothing is staged any more"
        ]
    lines += [f"lost: {line}" for line in lost]
    said = await look_after(_diff_script(folder, _commit(before), _commit(after)))
    diff = "\n".join(line for line in said.splitlines() if not line.startswith(_GITS_OWN))
    return GitChanges("\n".join([*lines, diff]).rstrip() + "\n", tuple(lost), False, *work)


async def uncommitted_files(look: Look) -> frozenset[str]:
    """The files below a folder that hold what no commit has, as paths below it. What git ignores is not among them."""
    dirty, others = await _uncommitted(look)
    return dirty | others


async def _uncommitted(look: Look) -> tuple[frozenset[str], frozenset[str]]:
    """Those that git knows, and those that it neither knows nor ignores."""
    tracked, _, others = (await look(_dirty_script())).partition(_OTHERS)
    return frozenset(tracked.split("\0")) - {""}, frozenset(others.split("\0")) - {""}


def _state_script(folder: str) -> str:
    git = f"{_GIT} --git-dir={shlex.quote(folder)}"
    return (
        f"{git} for-each-ref --format='%(objectname) %(refname)'; echo '{_HEAD}'"
        f"; {git} symbolic-ref -q HEAD || {git} rev-parse -q --verify HEAD; echo '{_STAGED}'"
        f"; {git} {_DIFF} --cached --raw --abbrev; echo '{_STASH}'; {git} stash list --format='%H %gd %gs'; true"
    )


def _read(said: str) -> _State:
    refs, _, rest = said.partition(f"{_HEAD}\n")
    head, _, rest = rest.partition(f"{_STAGED}\n")
    staged, _, stash = rest.partition(f"{_STASH}\n")
    found = (line.partition(" ") for line in refs.splitlines())
    return _State({name: commit for commit, _, name in found}, head.strip(), staged.splitlines(), stash.splitlines())


def _content(stash: str) -> str:
    return stash.partition(" ")[0]


def _commit(state: _State) -> str:
    return state.refs.get(state.head, "" if state.head.startswith("refs/") else state.head)


def _ref_script(folder: str, old: str, new: str) -> str:
    git = f"{_GIT} --git-dir={shlex.quote(folder)} log --no-color --no-decorate --oneline -n {MOST_COMMITS}"
    made = f"{git} {new} --not {old}" if new else "true"
    lost = f"{git} {old} --not --all HEAD" if old else "true"
    return f"{made} 2>/dev/null; echo '== lost'; {lost} 2>/dev/null; true"


def _diff_script(folder: str, old: str, new: str) -> str:
    git = f"{_GIT} --git-dir={shlex.quote(folder)} {_DIFF}"
    between = f"{git} {old} {new}; " if old and new and old != new else ""
    return f"({between}{git} --cached) 2>/dev/null | head -c {LARGEST_DIFF}; true"


def _changed_script(commit: str) -> str:
    """Files of the worktree that differ from a commit."""
    return f"{_GIT} diff --no-ext-diff --name-only --relative -z {commit or 'HEAD'} 2>/dev/null; true"


def _dirty_script() -> str:
    """Files with changes against the last commit, and behind a mark those that git neither knows nor ignores."""
    unknown = f"{_GIT} ls-files -z --others --exclude-standard"
    return f"{_changed_script('')}; printf '== others\\0'; {unknown} 2>/dev/null; true"


def _short(name: str) -> str:
    return name.removeprefix("refs/heads/").removeprefix("refs/")[:60]
