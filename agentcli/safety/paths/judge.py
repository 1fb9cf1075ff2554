"""Judges paths by their text: secret files, auto-executed files, odd names, and paths outside the workspace.

This module never looks at a disk. Callers resolve links, and have the real path judged as well.

Names are compared as NTFS and APFS compare them, so that another spelling of a name does not bypass a rule: case is
folded, NFKC applied, invisible characters and trailing dots or spaces removed, and short names such as `GIT~1` match.

- Secret files hold keys or conversations: `secret_files.json` lists them.
- Auto-executed files are run, or read as settings, by other programs without asking: git hooks, shell profiles.
  `auto_executed.toml` lists them; it is read when the first path is judged.
- Odd paths are disguises, URLs, devices, and files that the kernel generates.
"""

import itertools
import posixpath
import re
import unicodedata
from collections.abc import Iterable, Sequence
from fnmatch import translate
from functools import cache, lru_cache
from pathlib import Path, PurePath
from typing import Literal
from urllib.parse import unquote

import msgspec

from agentcli.patterns import lazy_pattern


@lru_cache(4_096)
def is_at_or_below(path: PurePath, folder: PurePath) -> bool:
    """Return True if `path` is the folder or is in it. `is_relative_to` takes quadratic time in Python 3.13."""
    return path.parts[: len(folder.parts)] == folder.parts


def fold_name(name: str) -> str:
    """Return the form of a name that the most forgiving file systems compare."""
    name = unicodedata.normalize("NFKC", name)
    name = "".join(letter for letter in name if unicodedata.category(letter) != "Cf").casefold()
    # On NTFS the text after a colon names another data stream of the same file.
    return name.partition(":")[0].rstrip(". ") or name


def is_short_for(name: str, names: Sequence[str]) -> bool:
    """Return True if `name` may be the short name (8.3) that Windows gives one of `names`, such as `GIT-CR~1`."""
    match = re.fullmatch(r"([^~.]{1,6})~\d{1,4}(?:\.[^.]{0,3})?", name)
    return match is not None and match[1] in _short_name_stems(tuple(names))


@lru_cache
def _short_name_stems(names: tuple[str, ...]) -> frozenset[str]:
    # Only hidden names without a wildcard. The stem is the part before the `~`: `.git-credentials` is `GIT-CR~1`.
    hidden = (name.lstrip(".") for name in names if name.startswith(".") and "*" not in name)
    return frozenset(re.sub(r"[ .]", "", name.rpartition(".")[0] or name)[:6] for name in hidden)


def _contain_path(paths: tuple[str, ...], parts: tuple[str, ...], *, starts: Iterable[int]) -> bool:
    """Return True if `parts` contain all parts of one of `paths`, in order, from one of the indexes `starts` on."""
    by_first = _by_first_part(paths)
    return any(parts[at : at + len(path)] == path for at in starts for path in by_first.get(parts[at], ()))


@lru_cache
def _by_first_part(paths: tuple[str, ...]) -> dict[str, list[tuple[str, ...]]]:
    """Return the folded parts of each path, by the first of them."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for path in paths:
        folded = tuple(map(fold_name, path.split("/")))
        found.setdefault(folded[0], []).append(folded)
    return found


# JSON, because reading TOML would take two milliseconds more at each start.
_FILE = Path(__file__).with_name("secret_files.json")
_LISTS = msgspec.json.decode(_FILE.read_bytes(), type=dict[str, tuple[str, ...]])
SECRET_HOME_PATHS = _LISTS["home"]  # files and folders in a home that hold secrets; the sandbox hides them
# A project's files with the names in `only_at_home` are public.
_SECRET_PATHS_ANYWHERE = tuple(path for path in SECRET_HOME_PATHS if path not in _LISTS["only_at_home"])
_PROCESS_FILES = frozenset(("environ", "mem", "kcore"))  # in /proc: the memory and environment of programs
# Names of secret files in any folder: case-insensitive globs for ripgrep and fnmatch. Exceptions are not secret.
SECRET_GLOBS, SECRET_GLOB_EXCEPTIONS = _LISTS["globs"], _LISTS["exceptions"]


@lru_cache(4_096)
def is_secret(path: PurePath, home: PurePath | None) -> bool:
    """Return True if a path has the name of a key file, or is in a folder of secrets. Both paths are absolute."""
    parts = tuple(map(fold_name, path.parts))
    if not parts or parts[-1].endswith(".pub"):  # a public key
        return False
    name = parts[-1]
    # The index of the first part below the home, if the path is below it.
    below_home = [len(home.parts)] if home is not None and path != home and is_at_or_below(path, home) else []
    return bool(
        (_expression(SECRET_GLOBS).match(name) and not _expression(SECRET_GLOB_EXCEPTIONS).match(name))
        or is_short_for(name, SECRET_GLOBS)
        or (parts[:2] == ("/", "proc") and name in _PROCESS_FILES)
        or parts[:3] == ("/", "run", "secrets")
        or parts[:4] == ("/", "var", "run", "secrets")
        or _contain_path(_SECRET_PATHS_ANYWHERE, parts, starts=range(len(parts)))
        or _contain_path(SECRET_HOME_PATHS, parts, starts=below_home)
    )


@lru_cache
def _expression(globs: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, globs)))


class AutoExecuted(msgspec.Struct, frozen=True, kw_only=True):
    """The lists of `auto_executed.toml`, which explains them; all groups are joined."""

    names: tuple[str, ...]
    reviewed: tuple[str, ...]
    home: tuple[str, ...]
    git: tuple[str, ...]
    in_dot_folders: tuple[str, ...]
    uncreatable: tuple[str, ...]  # also in a home: programs that start daily read these names


@cache
def auto_executed() -> AutoExecuted:
    from agentcli.tables import read_table  # here, because they are not needed at startup

    groups = read_table(__file__, "auto_executed").values()
    lists = {
        kind: tuple(name for group in groups for name in group.get(kind, ()))
        for kind in ("names", "reviewed", "home", "git", "in_dot_folders")
    }
    at_start = [group for group in groups if group.get("at_start")]
    uncreatable = tuple(name for kind in ("names", "home") for group in at_start for name in group.get(kind, ()))
    return AutoExecuted(**lists, uncreatable=uncreatable)


@cache
def _single_names() -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the names without a slash that commands cannot write: whole names, and the endings of globs."""
    names = [name for name in auto_executed().names if "/" not in name]
    return frozenset(name for name in names if "*" not in name), tuple(name[1:] for name in names if "*" in name)


def is_read_only_name(name: str) -> bool:
    """Return True for the name of a file or folder that sandboxed commands can neither write nor create."""
    whole, ends = _single_names()
    return name in whole or name.endswith(ends)


def is_auto_executed(path: PurePath) -> bool:
    """Return True if programs would run, or be configured by, a file at this path, relative to the workspace."""
    parts = tuple(map(fold_name, path.parts))
    return _is_write_protected(parts) or _is_reviewed(parts)


def is_reviewed(path: PurePath) -> bool:
    """Return True for a protected path, relative to the workspace, that commands may write because people review it."""
    parts = tuple(map(fold_name, path.parts))
    return _is_reviewed(parts) and not _is_write_protected(parts)


def _is_write_protected(parts: tuple[str, ...]) -> bool:
    table = auto_executed()
    return (
        _contain_name(table.names, parts)
        or _contain_path(table.home, parts, starts=range(len(parts)))
        # A bare repository may have any name; by convention it ends in `.git`.
        or any(folder.endswith(".git") and name in table.git for folder, name in itertools.pairwise(parts))
    )


def _is_reviewed(parts: tuple[str, ...]) -> bool:
    table = auto_executed()
    names_in_dot_folders = (name for folder, name in itertools.pairwise(parts) if folder.startswith("."))
    return _contain_name(table.reviewed, parts) or any(name in table.in_dot_folders for name in names_in_dot_folders)


def _contain_name(names: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    """Return True if one of `names` is among the parts: a name, `.git/hooks`, or a glob that begins with `*`."""
    if _contain_path(names, parts, starts=range(len(parts))):
        return True
    return any(part.endswith(_glob_endings(names)) or is_short_for(part, names) for part in parts)


@cache
def _glob_endings(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(fold_name(name[1:]) for name in names if name.startswith("*"))


PathKind = Literal["plain", "outside", "secret", "protected", "linked", "odd"]

WHY = {
    "outside": "is outside the workspace",
    "secret": "may hold secrets",
    "protected": "is an auto-executed file (git hook, editor task, shell profile …)",
    "linked": "has other names, perhaps outside the workspace",
    "odd": "is a name that may mean something else",
}


class PathFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A path that a call uses, with its judgement. `kind` is the most serious one that applies."""

    given: str  # as the call has it
    named: Path  # `given`, made absolute by the working directory
    real: Path  # with all links resolved
    access: Literal["read", "write"]
    kind: PathKind = "plain"
    is_outside: bool = False
    holds_secrets: bool = False  # False for a file that does not exist yet, whatever its name is
    is_read_only: bool = False  # the sandbox does not let calls change it: auto-executed but not reviewed, or outside

    @property
    def why(self) -> str:
        return f"{self.given} {WHY[self.kind]}" if self.kind != "plain" else ""


class PatternBase(msgspec.Struct, frozen=True):
    """The folders that path patterns are relative to."""

    cwd: Path  # for `./x` and `a/b`
    root: Path  # the project, for `/x`
    home: Path  # for `~/x`


def judge_path(
    path: str, *, access: Literal["read", "write"], cwd: Path, roots: Sequence[Path], home: Path | None
) -> PathKind:
    """Return the most serious kind that applies to a path, as a tool received it. All folders are absolute.

    - odd: it is not what it seems, or not an ordinary file.
    - secret: it is likely to hold keys.
    - protected (writes only): programs would run it or be configured by it.
    - outside: it is in none of the roots.

    A person decides about every path that is not plain.
    """
    # The person chose the workspace's name, so only the part below it can be odd; it is "" for the workspace itself.
    below = next((path[len(str(root)) + 1 :] for root in roots if f"{path}/".startswith(f"{root}/")), path)
    if not path or (below and is_odd(below)):
        return "odd"
    if home is not None and (path == "~" or path.startswith("~/")):
        path = f"{home}{path[1:]}"
    full = PurePath(posixpath.normpath(posixpath.join(cwd, path)))
    root = next((root for root in roots if is_at_or_below(full, root)), None)
    if is_secret(full, home):
        return "secret"
    # `path` too, because `..` behind a link leads elsewhere. The paths of a workspace in /dev/shm are not odd.
    if (is_special(PurePath(path)) or is_special(full)) and not (root and is_special(root)):
        return "odd"
    # Only the path below the root is checked, because the workspace itself may be `~/.claude/worktrees/x`.
    if access == "write" and is_auto_executed(full if root is None else full.relative_to(root)):
        return "protected"
    return "outside" if root is None else "plain"


MAX_PATH_BYTES = 4_096  # Linux's PATH_MAX
MAX_NAME_BYTES = 255  # the limit of ext4, APFS and NTFS
MAX_DEPTH = 256  # slashes in a path; real trees are rarely twenty folders deep


def is_odd(path: str) -> bool:
    """Return True for a disguise, a URL, a Windows device, and a path longer than file systems allow."""
    if not path or _size(path) > MAX_PATH_BYTES or path.count("/") > MAX_DEPTH:
        return True
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return bool(
        _HIDDEN.search(path)
        or _FOREIGN.match(path)
        or any(_size(part) > MAX_NAME_BYTES or _SPACED_DOTS.fullmatch(part) for part in parts)
        or (len(parts) > 1 and any(map(_DOTS.fullmatch, parts)))  # `...` or `./...` alone means Go packages
        or (parts and _DEVICE.fullmatch(parts[-1]))
        or any(_leads_elsewhere(path, reading) for reading in _readings(path))
    )


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


# Control, bidirectional and invisible characters; but neither the joiners that some scripts need, nor U+DC80 to U+DCFF,
# which represent bytes in a name that are not UTF-8.
_HIDDEN = lazy_pattern(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udc7f\udd00-\udfff]"
)
# UNC and device paths, drives, URLs; also other users' homes and variables, which only a shell would expand.
_FOREIGN = lazy_pattern(
    r"\\\\|//[?.]/|[A-Za-z]:[\\/]|[A-Za-z][A-Za-z0-9+.-]*://|(?i:file|data|javascript):|~[^/]|\$\w+/|\$\{\w+\}|%\w+%"
)
_DOTS = lazy_pattern(r"\.{3,}")
_SPACED_DOTS = lazy_pattern(r"[. ]*(?:\. | \.)[. ]*")  # Windows reads this as `.` or `..`
_DEVICE = lazy_pattern(r"(?i:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$|clock\$)[ .:]*")


def _readings(path: str) -> Iterable[str]:
    """Return the path as other programs may read it: percent-decoded, NFKC-folded, with backslashes as slashes."""
    decoded = unquote(path)
    folded = unicodedata.normalize("NFKC", path)
    return (decoded, unquote(decoded), folded, unquote(folded), path.replace("\\", "/"))


def _leads_elsewhere(path: str, reading: str) -> bool:
    """Return True if a reading of `path` has a different number of folders or `..`, or invisible characters.

    Then the path is odd: a program that reads it this way may open another file than the one that was judged.
    """

    def steps(text: str) -> tuple[int, int]:
        return text.count("/"), sum(part.strip() == ".." for part in text.split("/"))

    return reading != path and (steps(reading) != steps(path) or _HIDDEN.search(reading) is not None)


def is_special(path: PurePath) -> bool:
    """Return True for /proc, /dev and /sys, which hold no ordinary files, and some that never end."""
    parts = path.parts
    return len(parts) > 1 and parts[0].startswith("/") and parts[1].casefold() in ("proc", "dev", "sys")
