"""Classifies a path by its text alone: plain, outside, secret, protected or odd; and defines what calls know of a path.

Odd are disguises, URLs, devices, and the files that the kernel makes up.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import Literal
from urllib.parse import unquote

from msgspec import Struct

from agentcli.safety.paths.folding import is_below
from agentcli.safety.paths.protected import is_protected
from agentcli.safety.paths.secret import is_secret

PathKind = Literal["plain", "outside", "secret", "protected", "linked", "odd"]

WHY = {
    "outside": "is outside the workspace",
    "secret": "may hold secrets",
    "protected": "is an auto-executed file (git hook, editor task, shell profile …)",
    "linked": "has other names, perhaps outside the workspace",
    "odd": "is a name that may mean something else",
}


class PathFacts(Struct, frozen=True):
    """A path as it was given, from the working directory on (`named`), and where it really leads.

    What `is_outside` may be of a kind that weighs more. `linked` is a file with several names, one of which may be
    outside. `holds_secrets`: a file that is about to be made holds none, whatever its name says. `is_kept` from edits
    that nobody is asked about: auto-executed files, but for those that a project reviews, and what is outside.
    """

    given: str
    named: Path
    real: Path
    access: Literal["read", "write"]
    kind: PathKind = "plain"
    is_outside: bool = False
    holds_secrets: bool = False
    is_kept: bool = False

    @property
    def why(self) -> str:
        return f"{self.given} {WHY[self.kind]}" if self.kind != "plain" else ""


def judge_path(
    path: str, *, access: Literal["read", "write"], cwd: Path, roots: Sequence[Path], home: Path | None
) -> PathKind:
    """The most serious kind that applies to `path` as a tool was given it; `cwd`, `roots` and `home` are absolute.

    odd: not what it seems, or not a file. secret: likely to hold keys. protected (writes only): programs would run or
    obey it. outside: in none of the roots. A person decides about everything that is not plain.
    """
    # The owner chose the workspace's name, so only the part below it can be odd.
    below = next((path[len(str(root)) + 1 :] for root in roots if f"{path}/".startswith(f"{root}/")), path)
    if (below or not path) and is_odd(below):
        return "odd"
    if home is not None and (path == "~" or path.startswith("~/")):
        path = f"{home}{path[1:]}"
    full = PurePath(posixpath.normpath(posixpath.join(cwd, path)))
    root = next((root for root in roots if is_below(full, root)), None)
    if is_secret(full, home):
        return "secret"
    # A workspace in /dev/shm is one like any other.
    if (is_special(PurePath(path)) or is_special(full)) and not (root and is_special(root)):
        return "odd"
    # Protected names above the workspace do not count: `~/.claude/worktrees/x` is a fine place to work in.
    if access == "write" and is_protected(full if root is None else full.relative_to(root)):
        return "protected"
    return "outside" if root is None else "plain"


LONGEST_PATH = 4_096  # bytes, Linux's PATH_MAX
LONGEST_NAME = 255  # bytes, what ext4, APFS and NTFS allow
DEEPEST = 256  # parts; real trees are seldom twenty deep


def is_odd(path: str) -> bool:
    """True for a disguise, a URL, a Windows device, and a path longer than file systems allow."""
    raw = path.encode("utf-8", "surrogatepass")
    if not path or len(raw) > LONGEST_PATH or path.count("/") > DEEPEST or _HIDDEN.search(path):
        return True
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if any(len(part.encode("utf-8", "surrogatepass")) > LONGEST_NAME for part in parts):
        return True
    if _FOREIGN.match(path) or (len(parts) > 1 and any(_DOTS.fullmatch(part) for part in parts)):
        return True
    if any(_SPACED_DOTS.fullmatch(part) for part in parts):
        return True
    if parts and _DEVICE.fullmatch(parts[-1]):
        return True
    return any(_leads_elsewhere(path, other) for other in _readings(path))


# Control, bidirectional and invisible characters, but not the joiners that some scripts need, nor bytes that are not
# UTF-8 (U+DC80 to U+DCFF), which a name may hold.
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udc7f\udd00-\udfff]"
)
# UNC and device paths, drives, URLs; other users' homes and variables, which a shell would expand and we do not.
_FOREIGN = re.compile(
    r"\\\\|//[?.]/|[A-Za-z]:[\\/]|[A-Za-z][A-Za-z0-9+.-]*://|(?i:file|data|javascript):|~[^/]|\$\w+/|\$\{\w+\}|%\w+%"
)
_DOTS = re.compile(r"\.{3,}")
_SPACED_DOTS = re.compile(r"[. ]*(?:\. | \.)[. ]*")  # Windows reads this as `.` or `..`
_DEVICE = re.compile(r"(?i:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$|clock\$)[ .:]*")


def _readings(path: str) -> Iterable[str]:
    """The ways other programs may read `path`: percent-decoded (once or twice), NFKC-folded, backslashes as slashes."""
    decoded = unquote(path)
    folded = unicodedata.normalize("NFKC", path)
    return (decoded, unquote(decoded), folded, unquote(folded), path.replace("\\", "/"))


def _leads_elsewhere(path: str, other: str) -> bool:
    """True if `other` has parents or folders that `path` does not."""
    return other != path and (_steps(other) != _steps(path) or _HIDDEN.search(other) is not None)


def _steps(path: str) -> tuple[int, int]:
    parts = path.split("/")
    return len(parts), sum(part.strip() == ".." for part in parts)


def is_special(path: PurePath) -> bool:
    """True for the kernel's own trees (/proc, /dev, /sys), which hold no ordinary files, and some that never end."""
    parts = path.parts
    return len(parts) > 1 and parts[0].startswith("/") and parts[1].casefold() in ("proc", "dev", "sys")
