"""Recognizes paths that are not what they seem: disguises, URLs, devices, and files that the kernel makes up."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from pathlib import PurePath
from urllib.parse import unquote

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
