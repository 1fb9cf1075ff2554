"""Judges paths by their text: secret and auto-executed files, odd names, and what is outside the workspace.

Nothing here looks at a disk. Callers resolve links, and have the real path judged as well.

Names are compared as NTFS and APFS compare them, so that another spelling of a name is no way around a rule: case
folded, NFKC, without invisible characters and trailing dots or spaces, and short names such as `GIT~1`.

- Secret files hold keys or what was said: `secret_files.json` lists them.
- Auto-executed files are run or obeyed by other programs without asking: git hooks, shell profiles, editor tasks.
  `auto_executed.toml` lists them; it is read when the first path is judged.
- Odd paths are disguises, URLs, devices, and files that the kernel makes up.
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
def is_below(path: PurePath, folder: PurePath) -> bool:
    """Return True if `path` is the folder or is in it. `is_relative_to` takes quadratic time in Python 3.13."""
    return path.parts[: len(folder.parts)] == folder.parts


def fold_name(name: str) -> str:
    """Return the form of a name that the most forgiving file systems compare."""
    name = unicodedata.normalize("NFKC", name)
    name = "".join(letter for letter in name if unicodedata.category(letter) != "Cf").casefold()
    # On NTFS a colon begins the name of an alternate data stream of the file.
    return name.partition(":")[0].rstrip(". ") or name


def is_short_for(name: str, names: Sequence[str]) -> bool:
    """Return True if `name` may be the 8.3 short name that Windows gives one of `names`: six characters, a number."""
    match = re.fullmatch(r"([^~.]{1,6})~\d{1,4}(?:\.[^.]{0,3})?", name)
    return match is not None and match[1] in _stems(tuple(names))


@lru_cache
def _stems(names: tuple[str, ...]) -> frozenset[str]:
    # Their short names begin so: `.git-credentials` is `GIT-CR~1`.
    hidden = (name.lstrip(".") for name in names if name.startswith(".") and "*" not in name)
    return frozenset(re.sub(r"[ .]", "", name.rpartition(".")[0] or name)[:6] for name in hidden)


def holds(paths: tuple[str, ...], parts: tuple[str, ...], *, starts: Iterable[int]) -> bool:
    """Return True if one of `paths` begins in `parts` at one of the indexes `starts`."""
    by_first_part = _by_first_part(paths)
    return any(
        parts[start : start + len(path)] == path for start in starts for path in by_first_part.get(parts[start], ())
    )


@lru_cache
def _by_first_part(paths: tuple[str, ...]) -> dict[str, list[tuple[str, ...]]]:
    found: dict[str, list[tuple[str, ...]]] = {}
    for path in paths:
        folded = tuple(map(fold_name, path.split("/")))
        found.setdefault(folded[0], []).append(folded)
    return found


# JSON, because TOML would take another two milliseconds at each start.
_LISTS = msgspec.json.decode(
    Path(__file__).with_name("secret_files.json").read_bytes(), type=dict[str, tuple[str, ...]]
)
SECRET_HOME_PATHS = _LISTS["home"]  # files and folders of a home that hold secrets; the sandbox hides them
# A project's files with the names in `only_at_home` are public.
_ANYWHERE = tuple(path for path in SECRET_HOME_PATHS if path not in _LISTS["only_at_home"])
_PROCESS_FILES = frozenset(("environ", "mem", "kcore"))  # in /proc: the memory and environment of programs
# Names of secret files in any folder: globs for ripgrep and fnmatch, matched without case. The exceptions win.
SECRET_GLOBS, SECRET_GLOB_EXCEPTIONS = _LISTS["globs"], _LISTS["exceptions"]


@lru_cache(4_096)
def is_secret(path: PurePath, home: PurePath | None) -> bool:
    """Return True if a path has the name of a key file, or is in a folder of secrets. Both paths are absolute."""
    parts = tuple(map(fold_name, path.parts))
    if not parts or parts[-1].endswith(".pub"):
        return False
    name = parts[-1]
    # The index of the first part below the home, for a path that is there.
    below_home = [len(home.parts)] if home is not None and path != home and is_below(path, home) else []
    return bool(
        (_expression(SECRET_GLOBS).match(name) and not _expression(SECRET_GLOB_EXCEPTIONS).match(name))
        or is_short_for(name, SECRET_GLOBS)
        or (parts[:2] == ("/", "proc") and name in _PROCESS_FILES)
        or parts[:3] == ("/", "run", "secrets")
        or parts[:4] == ("/", "var", "run", "secrets")
        or holds(_ANYWHERE, parts, starts=range(len(parts)))
        or holds(SECRET_HOME_PATHS, parts, starts=below_home)
    )


@lru_cache
def _expression(globs: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, globs)))


class AutoExecuted(msgspec.Struct, frozen=True, kw_only=True):
    """The lists of `auto_executed.toml`, all groups together."""

    names: tuple[str, ...]
    reviewed: tuple[str, ...]
    home: tuple[str, ...]
    git: tuple[str, ...]
    in_dot_folders: tuple[str, ...]
    start: tuple[str, ...]  # names and home files of the groups with `at_start`


@cache
def auto_executed() -> AutoExecuted:
    import tomllib

    groups = tomllib.loads(Path(__file__).with_name("auto_executed.toml").read_text("utf-8")).values()
    lists = {
        kind: tuple(name for group in groups for name in group.get(kind, ()))
        for kind in ("names", "reviewed", "home", "git", "in_dot_folders")
    }
    at_start = [group for group in groups if group.get("at_start")]
    start = tuple(name for kind in ("names", "home") for group in at_start for name in group.get(kind, ()))
    return AutoExecuted(**lists, start=start)


@cache
def _single_names() -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the names of one part that commands cannot write: whole names, and the ends of others."""
    names = [name for name in auto_executed().names if "/" not in name]
    return frozenset(name for name in names if "*" not in name), tuple(name[1:] for name in names if "*" in name)


def is_read_only_name(name: str) -> bool:
    """Return True for the name of a file or folder that sandboxed commands can neither write nor create."""
    whole, ends = _single_names()
    return name in whole or name.endswith(ends)


def is_auto_executed(path: PurePath) -> bool:
    """Return True if programs would run or obey what is written to a path, which is relative to the workspace."""
    parts = tuple(map(fold_name, path.parts))
    return _is_write_protected(parts) or _is_reviewed(parts)


def is_reviewed(path: PurePath) -> bool:
    """Return True for a protected path that commands write like build files. It is relative to the workspace."""
    parts = tuple(map(fold_name, path.parts))
    return _is_reviewed(parts) and not _is_write_protected(parts)


def _is_write_protected(parts: tuple[str, ...]) -> bool:
    table = auto_executed()
    return (
        _holds(table.names, parts)
        or holds(table.home, parts, starts=range(len(parts)))
        # A bare repository may have any name; by convention it ends in `.git`.
        or any(folder.endswith(".git") and name in table.git for folder, name in itertools.pairwise(parts))
    )


def _is_reviewed(parts: tuple[str, ...]) -> bool:
    table = auto_executed()
    pairs = itertools.pairwise(parts)
    return _holds(table.reviewed, parts) or any(
        folder.startswith(".") and name in table.in_dot_folders for folder, name in pairs
    )


def _holds(names: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    # A name may have several parts, or begin with `*`.
    ends = _ends(names)
    return holds(names, parts, starts=range(len(parts))) or any(
        part.endswith(ends) or is_short_for(part, names) for part in parts
    )


@cache
def _ends(names: tuple[str, ...]) -> tuple[str, ...]:
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
    """A path that a call uses, and what is known of it. `kind` is the most serious one that applies."""

    given: str
    named: Path  # `given`, from the working directory on
    real: Path  # with all links resolved
    access: Literal["read", "write"]
    kind: PathKind = "plain"
    is_outside: bool = False
    holds_secrets: bool = False  # False for a file that is about to be made, whatever its name is
    is_kept: bool = False  # edits without a question leave it alone: auto-executed but not reviewed, or outside

    @property
    def why(self) -> str:
        return f"{self.given} {WHY[self.kind]}" if self.kind != "plain" else ""


class PathGround(msgspec.Struct, frozen=True):
    """The folders at which path globs begin."""

    cwd: Path  # `./x` and `a/b`
    root: Path  # `/x`
    home: Path  # `~/x`


def judge_path(
    path: str, *, access: Literal["read", "write"], cwd: Path, roots: Sequence[Path], home: Path | None
) -> PathKind:
    """Return the most serious kind that applies to a path as a tool was given it. All folders are absolute.

    - odd: it is not what it seems, or no file.
    - secret: it is likely to hold keys.
    - protected (writes only): programs would run or obey it.
    - outside: it is in none of the roots.

    A person decides about everything that is not plain.
    """
    # The person chose the workspace's name, so only the part below it can be odd.
    below = next((path[len(str(root)) + 1 :] for root in roots if f"{path}/".startswith(f"{root}/")), path)
    if (below or not path) and is_odd(below):
        return "odd"
    if home is not None and (path == "~" or path.startswith("~/")):
        path = f"{home}{path[1:]}"
    full = PurePath(posixpath.normpath(posixpath.join(cwd, path)))
    root = next((root for root in roots if is_below(full, root)), None)
    if is_secret(full, home):
        return "secret"
    # The paths of a workspace in /dev/shm are not odd.
    if (is_special(PurePath(path)) or is_special(full)) and not (root and is_special(root)):
        return "odd"
    # Only names inside the workspace are protected: the workspace itself may be `~/.claude/worktrees/x`.
    if access == "write" and is_auto_executed(full if root is None else full.relative_to(root)):
        return "protected"
    return "outside" if root is None else "plain"


MAX_PATH_BYTES = 4_096  # Linux's PATH_MAX
MAX_NAME_BYTES = 255  # of ext4, APFS and NTFS
MAX_DEPTH = 256  # parts; real trees are seldom twenty deep


def is_odd(path: str) -> bool:
    """Return True for a disguise, a URL, a Windows device, and a path longer than file systems allow."""
    if not path or _size(path) > MAX_PATH_BYTES or path.count("/") > MAX_DEPTH:
        return True
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return bool(
        _HIDDEN.search(path)
        or _FOREIGN.match(path)
        or any(_size(part) > MAX_NAME_BYTES or _SPACED_DOTS.fullmatch(part) for part in parts)
        or (len(parts) > 1 and any(map(_DOTS.fullmatch, parts)))  # a lone `...` or `./...` names packages of Go
        or (parts and _DEVICE.fullmatch(parts[-1]))
        or any(_leads_elsewhere(path, other) for other in _readings(path))
    )


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


# Control, bidirectional and invisible characters, but not the joiners that some scripts need, nor bytes that are not
# UTF-8 (U+DC80 to U+DCFF), which a name may hold.
_HIDDEN = lazy_pattern(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udc7f\udd00-\udfff]"
)
# UNC and device paths, drives, URLs; other users' homes and variables, which a shell would expand and we do not.
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


def _leads_elsewhere(path: str, other: str) -> bool:
    """Return True if `other` has folders, or steps to a parent folder, that `path` does not have."""

    def steps(text: str) -> tuple[int, int]:
        return text.count("/"), sum(part.strip() == ".." for part in text.split("/"))

    return other != path and (steps(other) != steps(path) or _HIDDEN.search(other) is not None)


def is_special(path: PurePath) -> bool:
    """Return True for the kernel's own trees (/proc, /dev, /sys), which hold no ordinary files, and endless ones."""
    parts = path.parts
    return len(parts) > 1 and parts[0].startswith("/") and parts[1].casefold() in ("proc", "dev", "sys")
