"""Finds auto-executed files: configuration that other programs follow without asking, and programs that git runs.

Of the names that do not exist yet in a project, only the most important ones are protected, because each costs a mount
and an empty folder. The others are looked for after a command, so that the person learns about new ones; files that
people review are then compared with their earlier states.

A repository's own configuration can make git run programs even for a command that only reads, and a command or an
archive may have brought the repository. Git itself is asked in the environment of commands, so it finds or refuses a
repository as it would there. The keys are those of git-config(1) and gitattributes(5), git 2.47.
"""

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache, partial
from itertools import islice
from pathlib import Path

from agentcli.infra.changes.state import parents_of, walk
from agentcli.infra.sandbox.git_config import Setting, read_configuration, read_small_file, run_git
from agentcli.infra.sandbox.mount_points import is_mount_point
from agentcli.infra.sandbox.protection.planning import looks_like_git_dir, modules_in
from agentcli.infra.sandbox.scan import Scan
from agentcli.safety.commands.records import GitSetup
from agentcli.safety.paths.judge import auto_executed

# Settings that `git init`, `clone` and `remote add` write, and the user's name and address: none starts a program.
_HARMLESS = {
    "core": (
        "repositoryformatversion filemode bare logallrefupdates ignorecase precomposeunicode symlinks autocrlf eol"
        " worktree"
    ).split(),
    "user": ["name", "email"],
    "init": ["defaultbranch"],
    "remote": ["url", "fetch"],
    "branch": ["remote", "merge", "rebase"],
}

State = tuple[tuple[int, ...], ...]  # the stamps of a file, or of a folder and its entries
# The number of stamps by which a watched path is compared with its earlier state: none, so that it is only reported
# when it is new; its own; or also those of the entries in the folder.
_NO_STAMP, _OWN_STAMP, _FOLDER_STAMPS = 0, 1, 1_000

_BOOLEANS = frozenset((None, "", "true", "yes", "on", "1", "false", "no", "off", "0"))
# `section.key`, without the subsection. A partial clone fetches missing objects with programs that many settings name;
# those in the last line may make git check signatures.
_PROGRAMS = frozenset(
    "diff.external diff.command diff.textconv filter.clean filter.smudge filter.process merge.driver man.cmd man.path"
    " browser.cmd browser.path gpg.program hook.command remote.promisor extensions.partialclone"
    " log.showsignature format.pretty branch.sort tag.sort".split()
)
_LFS = re.compile(r"git-lfs (clean|smudge|filter-process)( --skip)?( -- %f)?")
_OTHER_PROGRAMS = ("core.hookspath", "push.recursesubmodules", "submodule.recurse")  # even if the person has set them
_HOOK = "post-index-change"  # the only one that read-only commands run: git status and git diff write the index
_MAX_REPOSITORIES = 50
_MAX_GIT_S = 2.0
# With these variables git fetches and writes nothing while it is asked.
_READ_ONLY_ENVIRONMENT = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}


@cache
def _watched_names() -> dict[str, int]:
    """Return the names to look for after a command, each with the number of stamps to compare (such as `_NO_STAMP`)."""
    names, reviewed = auto_executed().names, auto_executed().reviewed
    stamp_counts = dict.fromkeys((*names, "HEAD"), _NO_STAMP)  # a `HEAD` shows a bare repository
    outer_folders = {folder for name in names for folder in parents_of(name)}
    for name in reviewed:  # commands may write these, so a change is reported, too
        # In a folder such as `.jj`, only `names` such as `.jj/repo/config.toml` matter: jj itself writes the others.
        stamp_counts[name] = _OWN_STAMP if name in outer_folders else _FOLDER_STAMPS
    stamp_counts.update((name, _OWN_STAMP) for name in names if "*" in name)  # as the files that match it
    return stamp_counts


def present_names(root: Path, names: tuple[str, ...]) -> list[str]:
    """Return the names that may exist in a folder, ignoring case; `*.x` stands for all names with that ending."""
    try:
        entries = sorted(os.listdir(root))  # noqa: PTH208  # a fifth of the time
    except OSError:  # if the folder cannot be listed, all may exist
        return [name for name in names if "*" not in name]
    lower = {entry.lower() for entry in entries}
    endings = tuple(name[1:] for name in names if name[0] == "*")
    found = [name for name in names if name.partition("/")[0].lower() in lower]  # for `a/b` only `a` is checked
    return [*found, *(entry for entry in entries if entry.endswith(endings))]


def watched_states(roots: Iterable[Path]) -> dict[Path, State]:
    """Return the auto-executed paths in a workspace, each with its state, which is empty if only new paths matter."""
    states: dict[Path, State] = {}
    for root in roots:
        for name in present_names(root, tuple(_watched_names())):
            if os.path.lexists(path := root / name) and not is_mount_point(str(path)):
                # A name that is not in the table matches a pattern in it, such as `*.x`.
                states[path] = _stamps(path, _watched_names().get(name, _OWN_STAMP))
    return states


def _stamps(path: Path, max_entries: int) -> State:
    """Return the stamps of a file, or of a folder's entries up to the first that cannot be read."""
    stamps = []
    with suppress(OSError):
        for _, entry in islice(walk(str(path), ""), max_entries):
            stamps.append(entry.stamp)
    return tuple(stamps)


def find_new_or_changed(before: Mapping[Path, State], roots: Iterable[Path], git: str) -> list[Path]:
    """Return the watched paths that are new or changed, but repositories only if they make git start programs."""
    states = watched_states(roots).items()
    return [path for path, state in states if state != before.get(path) and _may_start_programs(path, git)]


def _may_start_programs(path: Path, git: str) -> bool:
    """Return True unless a watched path is a `HEAD` outside of repositories, or part of a harmless repository."""
    if path.name == "HEAD":
        return looks_like_git_dir(str(path.parent)) and _starts_programs(path.parent, git)
    if path.name == ".git" and not path.is_file():  # a file leads to a repository elsewhere, which may start anything
        return _starts_programs(path, git)
    return True


def _starts_programs(folder: Path, git: str) -> bool:
    """Return True if hooks or settings of a repository may make git start a program, as all but `_HARMLESS` do."""
    with suppress(OSError):
        if any(not hook.name.endswith(".sample") for hook in (folder / "hooks").iterdir()):
            return True
    text = read_small_file(str(folder / "config"))
    if not text:  # there is no configuration, or it cannot be read
        return os.path.lexists(folder / "config")
    found = read_configuration(text, git)
    if found.is_refused or "\0" in text:
        return True
    return any(
        key not in _HARMLESS.get(section, ()) or (key == "url" and (value or "").lower().startswith("ext::"))
        for section, _, key, value in found.settings
    )


def find_program_setting(folder: Path, *, git: str, environment: Mapping[str, str], scan: Scan) -> str:
    """Name a setting that may make `git`, started in `folder`, run a program that the repository chose; "" if none.

    If that cannot be determined, return a reason in place of a name. Git also looks into submodules, and any repository
    below the folder may be a submodule of an old commit, so `scan` finds those that the index does not name.
    """
    if not git:
        return "one that cannot be looked for, because git is not installed"
    ask = partial(_ask_git, git, {**environment, **_READ_ONLY_ENVIRONMENT})
    waiting = [("-C", str(folder))]  # of each repository still to be checked: git's option for it, and a path
    seen: set[str] = set()
    try:
        while waiting:
            location = waiting.pop()
            answer = ask(location, "rev-parse --absolute-git-dir --git-common-dir")
            if answer is None or answer in seen:  # None: git finds no repository there, and would run nothing
                continue
            seen.add(answer)
            if len(seen) > _MAX_REPOSITORIES:
                return "one of more repositories than are looked at"
            git_folder, _, common = answer.removesuffix("\n").partition("\n")
            common = os.path.realpath(Path(location[1], common))  # git prints it relative to where it was started
            top = (ask(location, "rev-parse --show-toplevel") or git_folder).removesuffix("\n")
            if program := _find_program(ask(location, "config --list --null --show-scope"), common, top):
                return program
            index = (ask(location, "ls-files --stage -z --full-name :/") or "").split("\0")
            # A submodule is `160000 OBJECT STAGE⇥PATH` in the index.
            submodules = [f"{top}/{entry.partition(chr(9))[2]}" for entry in index if entry.startswith("160000 ")]
            nested = (*submodules, *scan.repositories(top))
            if scan.is_partial(top):
                return f"one of more repositories than are looked at in {top}"
            waiting += [("-C", each) for each in nested if os.path.lexists(f"{each}/.git")]
            for folder_of_git in {git_folder, common}:
                waiting += [("--git-dir", module) for module in modules_in(f"{folder_of_git}/modules")]
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return f"one that cannot be looked for: {error}"
    return ""


def find_git_setup(folder: Path, *, git: str, environment: Mapping[str, str], scan: Scan) -> GitSetup | None:
    """Find git's settings, repository and programs that it may start in a folder; None if git does not answer."""
    ask, location = partial(_ask_git, git, {**environment, **_READ_ONLY_ENVIRONMENT}), ("-C", str(folder))
    try:
        listed = ask(location, "config --list --null") if git else None
        if listed is None:
            return None
        found = [(each.name, each.value or "") for each in map(Setting.parse, listed.split("\0")[:-1])]
        top = (ask(location, "rev-parse --show-toplevel") or "").removesuffix("\n")
        common = (ask(location, "rev-parse --git-common-dir") or "").removesuffix("\n")
        branch = (ask(location, "symbolic-ref --quiet --short HEAD") or "").strip()
    except (OSError, subprocess.SubprocessError):
        return None
    repository = Path(os.path.realpath(folder / common))
    program = ""
    if common and (_starts_programs(repository, git) or any(name in _OTHER_PROGRAMS for name, _ in found)):
        program = f"hooks or settings in {repository}"
    elif top and ((repository / "modules").exists() or scan.repositories(top) or scan.is_partial(top)):
        program = f"those of repositories in {top}"  # git may also fetch in submodules
    return GitSetup(settings=tuple(found), branch=branch, top=top, program=program)


def _ask_git(git: str, environment: Mapping[str, str], location: tuple[str, str], question: str) -> str | None:
    """Return git's output; None if it fails. Raises `OSError` and `SubprocessError`."""
    done = run_git([git, *location, *question.split()], environment=environment, timeout_s=_MAX_GIT_S)
    return None if done.returncode else os.fsdecode(done.stdout)


def _find_program(settings: str | None, common: str, top: str) -> str:
    """Name the first of a repository's `settings`, listed with scopes, that starts a program, or a hook; else ""."""
    if settings is None:
        return f"one in {common}/config, which git does not list"
    hook_folders = [f"{common}/hooks"]
    words = settings.split("\0")  # alternately scopes and settings
    for scope, text in zip(words[::2], words[1::2], strict=False):
        setting = Setting.parse(text)
        if scope not in ("local", "worktree"):  # the person's and the machine's settings are trusted
            continue
        if _setting_starts_program(setting):
            return f"{text.partition(chr(10))[0]} in {common}/config"
        if setting.key == "hookspath" and setting.value:
            hook_folders.append(os.path.expanduser(setting.value))  # noqa: PTH111  # a Path raises an error for unknown users
    # A relative folder of hooks is looked for in both folders where git may run them; an absolute one stays the same.
    found = (Path(start, folder, _HOOK) for folder in hook_folders for start in (top, common))
    return next((str(hook) for hook in found if os.path.lexists(hook)), "")


def _setting_starts_program(setting: Setting) -> bool:
    """Return True if a setting may make git start a program even when it only reads; Git LFS is trusted."""
    name = f"{setting.section}.{setting.key}"
    if name == "core.fsmonitor":
        return setting.value not in _BOOLEANS  # true means git's own daemon
    if setting.section == "filter" and _LFS.fullmatch(setting.value or ""):
        return False
    return setting.section == "pretty" or name in _PROGRAMS  # any pretty format may check signatures
