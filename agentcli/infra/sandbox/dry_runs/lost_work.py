"""Describes a dry run's changes to repositories, and marks those that lose work.

Git itself is asked for them, in the sandbox. It runs no program that a repository configures.
"""

import os
import re
import shlex
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Literal, NamedTuple

from msgspec.structs import replace

from agentcli.conversation.history import counted
from agentcli.infra.changes.groups import ChangeGroup, shown_path
from agentcli.infra.changes.state import ChangeSet, digest_of, parents_of
from agentcli.infra.sandbox.git_config import MAX_CONFIGURATION_BYTES, Setting, read_configuration, read_small_file
from agentcli.patterns import lazy_pattern

MAX_REFS = 10
MAX_COMMITS = 20
MAX_FILES = 50  # changed between two commits
MAX_BYTES = 200_000  # of the description

_GIT = "git -c core.hooksPath=/dev/null -c core.pager=cat --no-pager"
_DIFF = "diff --no-ext-diff --no-textconv --no-color"

# Settings that name no program. Adding a remote is harmless, but the person must see a change of an existing one.
_HARMLESS = lazy_pattern(
    r"user\.(name|email)|branch\..+\.(remote|merge|pushremote|rebase|description)|remote\..+\.(url|fetch)"
    r"|(pull|push|fetch|init|merge|rebase)\.(rebase|ff|default|autosetupremote|prune|defaultbranch|conflictstyle)",
    re.DOTALL,
)
_PRINT_NUL = "printf '\\0';"  # a script's command between two parts, whose outputs it separates

# Runs a shell script in a folder, as that was before the command or as it is after it, and returns the output.
RunScript = Callable[[str], Awaitable[str]]

FEW_FILES = 5  # if so few files are gone, they are most of a tree only if they are all of it

# Folders that can be installed again, and git's own.
_NOT_COUNTED = frozenset((".venv", "venv", "node_modules", "site-packages", "vendor", ".git"))
# Git writes these files even if nothing changes.
_BOOKKEEPING = {"index", "AUTO_MERGE", "COMMIT_EDITMSG", "ORIG_HEAD", "gc.log"}


class GitChanges(NamedTuple):
    """The changes to a repository, as git describes them."""

    text: str
    lost: tuple[str, ...]  # commits and stashes that are lost once the changes are applied
    moves: str = ""  # how a branch moves
    is_auto_executed: bool = False  # True if some settings may make git run a program, or send something elsewhere


class _RepositoryState(NamedTuple):
    refs: dict[str, str]  # commits by name
    head: str  # a ref or a commit
    staged: list[str]  # lines of `git diff --raw`
    stashes: dict[str, str]  # titles by commit

    @property
    def commit(self) -> str:
        """The commit of HEAD; empty on a branch without commits."""
        return self.refs.get(self.head, "" if self.head.startswith("refs/") else self.head)


async def describe_git_changes(folder: str, run_before: RunScript, run_after: RunScript) -> GitChanges:
    """Describe the changes of the repository whose `.git` is `folder`, for the question whether to apply them."""
    git = f"{_GIT} --git-dir={shlex.quote(folder)}"
    before, after = await _read_state(git, run_before), await _read_state(git, run_after)
    if before == after:
        return GitChanges("", ())
    names = {**before.refs, **after.refs}.keys() - {"refs/stash"}  # lost stashes are named one by one
    moved_refs = sorted(name for name in names if before.refs.get(name) != after.refs.get(name))
    output = await run_after(_script_for_changes(git, before, after, moved_refs))
    lost_commits, commit_counts, refs, changed_files = _split_parts(output)
    lost_stashes = (
        f"stash {title} (git stash store {commit[:10]} brings it back)"
        for commit, title in before.stashes.items()
        if commit not in after.stashes
    )
    lost = [*lost_commits.splitlines(), *lost_stashes]
    # The end of a line `:100644 100644 7c4a013 f2ad6c7 M⇥NAME` is shown.
    staged = [f"staged: {line.split(' ', 4)[-1]}" for line in after.staged]
    lines = [
        *([f"HEAD: {_short_ref(before.head)} → {_short_ref(after.head)}"] if before.head != after.head else ()),
        *refs.splitlines(),
        *([f"… {len(moved_refs) - MAX_REFS} more refs"] if len(moved_refs) > MAX_REFS else ()),
        *((staged or ["nothing is staged any more"]) if before.staged != after.staged else ()),
        *changed_files.splitlines(),
    ]
    text = "\n".join(f"  {line}" for line in lines) + "\n"
    return GitChanges(text, tuple(lost), _describe_move(before, after, moved_refs, commit_counts.split()))


def _describe_move(before: _RepositoryState, after: _RepositoryState, moved: list[str], counts: list[str]) -> str:
    """Describe the move of HEAD's branch, else of the first ref that moved.

    `counts` are the commits that HEAD lost and got: empty if they are not known, and 0 if another ref moved.
    """
    if before.head != after.head:
        return f"switches to {_short_ref(after.head) if after.head.startswith('refs/') else after.head[:7]}"
    if not moved:
        return ""
    ref = before.head if before.head in moved else moved[0]
    verb = "creates" if ref not in before.refs else "deletes" if ref not in after.refs else "moves"
    directions = zip(("back", "forward"), map(int, counts), strict=False)  # none if there are no `counts`
    steps = [f"{direction} by {counted(count, 'commit')}" for direction, count in directions if count]
    return f"{verb} {_short_ref(ref)} {' and '.join(steps)}".rstrip()


def add_configuration_changes(git: GitChanges, repository: ChangeGroup) -> GitChanges:
    """Add the changes of the repository's configuration; set `is_auto_executed` if git may run or contact something.

    Blocks. Raises `OSError`.
    """
    changes = repository.changes
    path = next((path for path in repository.paths if changes.at(path).endswith("/.git/config")), None)
    if path is None:
        return git
    entry = changes.after.get(path)
    old = read_configuration(read_small_file(changes.at(path)))
    is_readable = entry is not None and entry.kind == "file" and entry.size < MAX_CONFIGURATION_BYTES
    new_text = read_small_file(entry.source) if entry is not None and is_readable else "["  # invalid, so git refuses it
    new = read_configuration(new_text)
    removed, added = Counter(old.settings) - Counter(new.settings), Counter(new.settings) - Counter(old.settings)
    lines = [
        *(f"  config: - {setting.name} = {setting.value!r}\n" for setting in removed),
        *(f"  config: + {setting.name} = {setting.value!r}\n" for setting in added),
    ]
    old_names = {setting.name for setting in old.settings}

    def is_harmless(setting: Setting) -> bool:
        names_program = re.match("-|.*::", setting.value or "", re.DOTALL)  # an option, or a helper such as `ext::`
        # A changed remote, for example, could send commits elsewhere. A changed `user.name` is harmless.
        changes_existing = setting.name in old_names and setting.section != "user"
        return not (names_program or changes_existing)

    has_harmless_names = all(_HARMLESS.fullmatch(setting.name) for setting in (*removed, *added))
    is_auto_executed = new.is_refused or not (has_harmless_names and all(map(is_harmless, added)))
    return git._replace(text="".join(lines) + git.text, is_auto_executed=is_auto_executed)


def _script_for_changes(git: str, before: _RepositoryState, after: _RepositoryState, moved: Sequence[str]) -> str:
    """Return a script that prints lost commits, how far HEAD moved, `moved` refs with new commits, changed files."""
    log = f"{git} log --no-color --no-decorate -n {MAX_COMMITS}"
    refs = ""
    old_commits = " ".join(filter(None, (before.refs.get(name) for name in moved)))
    # The new commits of a ref are those that its old commit did not lead to. For a ref that the command created, they
    # are those that no ref led to before: neither a moved one, nor HEAD, nor (`--all`) one that did not move.
    except_moved = " ".join(f"--exclude={shlex.quote(name)}" for name in ("HEAD", *moved))
    old_history = f"{old_commits} {before.commit} {except_moved} --all"
    for name in moved[:MAX_REFS]:
        old, new = before.refs.get(name, ""), after.refs.get(name, "")
        line = f"{_short_ref(name)}: {old[:7] or 'none'} → {new[:7] or 'none'}"
        refs += f"echo {shlex.quote(line)}; "
        refs += f"{log} --format='  + %h %s' {new} --not {old or old_history}; " if new else ""
    # Commits are lost if a moved ref led to them, and no ref does now.
    lost_commits = f"{log} --format='commit %h %s' {old_commits} --not --all HEAD; " if old_commits else ""
    # If HEAD has another commit now, show the files that differ, and count the commits that it lost and got.
    has_head_moved = before.commit and after.commit and before.commit != after.commit
    commits = f"{before.commit} {after.commit}"
    changed_files = f"{git} {_DIFF} --stat=100 --stat-count={MAX_FILES} {commits}" if has_head_moved else ""
    counts = f"{git} rev-list --left-right --count {before.commit}...{after.commit}; " if has_head_moved else ""
    # Lost commits come first, because the middle of a long output is cut.
    parts = f" {_PRINT_NUL} ".join((lost_commits, counts, refs, changed_files))
    return f"({parts}) 2>/dev/null | head -c {MAX_BYTES}; true"


async def uncommitted_files(run_before: RunScript, run_after: RunScript) -> tuple[frozenset[str], frozenset[str]]:
    """Return the relative paths of files that were uncommitted before the command, and of those that it reset."""
    list_untracked = f"{_GIT} ls-files -z --others --exclude-standard"
    before = await run_before(f"({_script_for_changed_files('HEAD')}; {_PRINT_NUL} {list_untracked}) 2>/dev/null; true")
    commit, *uncommitted = before.split("\0")
    # A NUL ends each name. The script prints another between changed and untracked files, which makes an empty name.
    changed = uncommitted[: uncommitted.index("")] if "" in uncommitted else uncommitted
    still_changed = list[str]()
    if commit and changed:
        still_changed = (await run_after(f"{_script_for_changed_files(commit)} 2>/dev/null; true")).split("\0")
    return frozenset(filter(None, uncommitted)), frozenset(changed).difference(still_changed)


def _script_for_changed_files(commit: str) -> str:
    """Return a script that prints a commit's id, and then the files that differ from it, each after a NUL."""
    diff = f"{_GIT} diff --no-ext-diff --name-only --relative -z {commit}"
    return f"{_GIT} rev-parse -q --verify {commit} | tr -d '\\n'; {_PRINT_NUL} {diff}"


async def _read_state(git: str, run_script: RunScript) -> _RepositoryState:
    """Ask git for the state of a repository; each command line begins with `git`."""
    output = await run_script(
        f"exec 2>/dev/null; {git} for-each-ref --format='%(refname) %(objectname)'; {_PRINT_NUL}"
        f" {git} symbolic-ref -q HEAD || {git} rev-parse -q --verify HEAD; {_PRINT_NUL}"
        f" {git} {_DIFF} --cached --raw --abbrev; {_PRINT_NUL} {git} stash list --format='%H %gd %gs'; true"
    )
    refs, head, staged, stashes = _split_parts(output)
    # A ref is `REF COMMIT`, a stash is `COMMIT stash@{0} TITLE`.
    return _RepositoryState(_by_first_word(refs), head.strip(), staged.splitlines(), _by_first_word(stashes))


def _by_first_word(lines: str) -> dict[str, str]:
    """Return the rest of each line, by its first word."""
    return {word: rest for word, _, rest in (line.partition(" ") for line in lines.splitlines())}


def _split_parts(output: str) -> list[str]:
    """Split the output of a script with `_PRINT_NUL` between its four parts at the NULs; missing parts are empty."""
    return [*output.split("\0", 3), "", "", ""][:4]


def _short_ref(name: str) -> str:
    return name.removeprefix("refs/heads/").removeprefix("refs/")[:60]


def join_worktree_changes(groups: Sequence[ChangeGroup], repository: ChangeGroup, git: GitChanges) -> list[ChangeGroup]:
    """Join a repository's group and those in its worktree: a commit and its files need one question, not many.

    If only git's bookkeeping changed, nothing is joined, and the repository's group is left out: it needs no question.
    """
    worktree = repository.paths[0].partition(".git")[0]  # its folder below the root: "", or with a slash at the end
    others = [group for group in groups if group is not repository]
    shortened_logs = [path for path in repository.paths if _is_shortened_log(path, repository.changes)]
    names_in_git = [path.rpartition(".git/")[2] for path in repository.paths]
    is_bookkeeping = all(path in _BOOKKEEPING or path.startswith(("objects", "logs")) for path in names_in_git)
    if is_bookkeeping and not git.text and not shortened_logs:
        return others
    in_worktree = [  # without auto-executed files and nested repositories, which have questions of their own
        group
        for group in others
        if group.changes.root == repository.changes.root
        and group.paths[0].startswith(worktree)
        and not group.summary.is_auto_executed
        and group.summary.what != "repository"
    ]
    summaries = [group.summary for group in in_worktree]
    losses = {each.permanent_loss for each in summaries}  # "tree" is worse than "work"; "" is none
    loses_work = bool(git.lost or shortened_logs or "work" in losses)
    outcomes = Counter[str]()
    for each in summaries:
        outcomes[each.outcome] += each.files
    without_diff = (f"  {each.kind} {each.name}\n" for each in summaries if not each.diff)  # only these are named
    summary = replace(
        repository.summary,
        diff="".join((*without_diff, git.text, *(each.diff for each in summaries))),
        moves=git.moves,
        worktree=tuple(outcomes.items()),
        notes=(
            *(f"loses {lost}" for lost in git.lost),
            *(f"loses entries of the log of {shown_path(path.rpartition('logs/')[2])}" for path in shortened_logs),
            *(f"{each.name}: {note}" for each in summaries for note in each.notes),
        ),
        is_auto_executed=repository.summary.is_auto_executed or git.is_auto_executed,
        permanent_loss="tree" if "tree" in losses else "work" if loses_work else "",
    )
    paths = (*repository.paths, *(path for group in in_worktree for path in group.paths))
    return [ChangeGroup(summary, repository.changes, paths), *(group for group in others if group not in in_worktree)]


def find_lost_files(groups: Sequence[ChangeGroup]) -> dict[str, set[str]]:
    """Return, by root, the files whose contents were deleted or replaced as a whole; git may have no copy of them.

    Groups that have a `permanent_loss` already are left out.
    """
    changes_by_root = {group.changes.root: group.changes for group in groups}
    gone_files = {root: _find_gone_files(changes) for root, changes in changes_by_root.items()}
    found: dict[str, set[str]] = {}
    for group in groups:
        lost = gone_files[group.changes.root].intersection(group.paths)
        if group.summary.kind == "changed" and _is_rewritten(group.summary.diff):
            lost.update(group.paths)
        if lost and not group.summary.permanent_loss and group.summary.kind in ("changed", "deleted", "renamed"):
            found.setdefault(group.changes.root, set()).update(lost)
    return found


def mark_lost_work(
    groups: Sequence[ChangeGroup], root: str, lost_paths: Collection[str], uncommitted: Collection[str]
) -> list[ChangeGroup]:
    """Mark other groups that delete or overwrite uncommitted work. In `uncommitted` the folders end with a slash."""
    lost = {
        path
        for path in lost_paths
        if path in uncommitted or any(f"{parent}/" in uncommitted for parent in parents_of(path))
    }

    def loses_work(group: ChangeGroup) -> bool:
        can_lose = group.summary.kind != "created" and not group.summary.permanent_loss  # which marks it already
        return can_lose and group.changes.root == root and not lost.isdisjoint(group.paths)

    note = "loses its uncommitted contents"
    return [_mark(group, "work", note) if loses_work(group) else group for group in groups]


def mark_lost_tree(groups: Sequence[ChangeGroup], changes: ChangeSet) -> list[ChangeGroup]:
    """Mark the groups that together delete or empty more than half of the tree's files, or all of a few."""
    gone_files = _find_gone_files(changes)
    if len(gone_files) <= 1:  # a single file is not a tree
        return [*groups]
    count = _count_files_up_to(2 * len(gone_files), changes.root)  # with more files, the gone ones are less than half
    min_gone = count if len(gone_files) <= FEW_FILES else count // 2 + 1
    if len(gone_files) < min_gone:
        return [*groups]
    notes = [f"In all, {len(gone_files):,} of the {count:,} files in {shown_path(changes.root)} would be gone or empty"]
    marked = []
    for group in groups:
        if gone_files.intersection(group.paths):
            group, notes = _mark(group, "tree", *notes), []  # only the first marked group has the note
        marked.append(group)
    return marked


def _mark(group: ChangeGroup, loss: Literal["work", "tree"], *notes: str) -> ChangeGroup:
    return group._replace(summary=replace(group.summary, permanent_loss=loss, notes=(*notes, *group.summary.notes)))


def _is_rewritten(diff: str) -> bool:
    """Return True if a diff keeps no line of the old text, even with another indentation."""
    lines = diff.partition("\n@@ ")[2].split("\n")[1:]  # after the head of the first hunk
    old, new = ({line[1:].strip() for line in lines if line.startswith(sign)} - {""} for sign in "-+")
    return bool(old) and not old & new and not any(line.startswith(" ") for line in lines)


def _is_shortened_log(path: str, changes: ChangeSet) -> bool:
    before, after = changes.before_and_after(path)
    is_log = ".git/logs/" in f"/{path}" and not path.endswith("logs/refs/stash")  # lost stashes are named one by one
    return is_log and before is not None and before.kind == "file" and (after is None or after.size < before.size)


def _find_gone_files(changes: ChangeSet) -> set[str]:
    """Return the files that were deleted or emptied, except those that were moved or can be installed again."""
    gone_files = {}
    for path, before in changes.before.items():
        after = changes.after.get(path)
        is_gone = after is None or after.kind != "file" or (before.size and not after.size)
        if before.kind == "file" and is_gone and not _NOT_COUNTED.intersection(path.split("/")):
            gone_files[path] = before
    # A digest needs the contents, so digests are made only if there are new files with the size of gone ones.
    sizes = {before.size for before in gone_files.values()}
    new_files = [entry for path, entry in changes.after.items() if path not in gone_files and entry.size in sizes]
    moved_digests = {digest_of(entry) for entry in new_files if entry.kind == "file"}  # contents under other names
    return {path for path, before in gone_files.items() if not moved_digests or digest_of(before) not in moved_digests}


def _count_files_up_to(limit: int, root: str) -> int:
    """Count the files below a root, without those that can be installed again; stop soon after the limit."""
    count = 0
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if name not in _NOT_COUNTED]
        count += sum(not os.path.islink(f"{folder}/{name}") for name in files)  # noqa: PTH114
        if count > limit:
            break
    return count
