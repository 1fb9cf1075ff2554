"""Recognizes paths whose loss ruins the system: the root, homes, the folders it stands on."""

from __future__ import annotations

import fnmatch
import re
import string
from collections.abc import Sequence

from agentcli.safety.commands.reader.syntax import Field, State, normal

_SYSTEM = frozenset(
    (
        "/ /home /usr /etc /var /bin /sbin /lib /lib32 /lib64 /libx32 /boot /root /opt /dev /proc /sys /nix /Users "
        "/System /Library /Applications /private /usr/bin /usr/sbin /usr/lib /usr/lib64 /usr/share /var/lib /boot/efi "
        "/sys/firmware/efi /sys/firmware/efi/efivars /System/Library /private/etc /private/var"
    ).split()
)


def is_system_path(field: Field, state: State, *, of_home: bool = True) -> bool:
    """True for the root, a folder the system stands on, a home, or everything inside one of them.

    With `of_home` false the home itself counts, but not everything inside it.
    """
    paths = state.paths(field) if field.text else []
    home = normal(state.home) if state.home is not None else "/"
    return any(_is_system_path(normal(path), field.is_glob, home, of_home=of_home) for path in paths)


def _is_system_path(path: str, is_glob: bool, home: str, *, of_home: bool) -> bool:
    parts, home_parts = _parts(path), _parts(home)
    places = {*_SYSTEM, *("/" + "/".join(home_parts[:count]) for count in range(len(home_parts) + 1))}
    if not is_glob:
        return path in places
    while parts and is_open(parts[-1]):
        parts = parts[:-1]
    if not of_home and parts == home_parts:
        return path == home
    return any(_finds_path(parts, _parts(place)) for place in places)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _finds_path(globs: Sequence[str], parts: Sequence[str]) -> bool:
    return len(globs) == len(parts) and all(map(finds, globs, parts))


def is_open(glob: str) -> bool:
    """True if a glob finds most names, or most hidden ones: `*`, `.*`, `[!.]*`, `[a-z]*`, `.??*`."""
    if "*" not in glob:
        return False
    return any(sum(finds(glob, f"{dot}{letter}xyz") for letter in string.ascii_lowercase) > 13 for dot in ("", "."))


def finds(glob: str, name: str) -> bool:
    """True if a glob of one part finds a name. A hidden name is found only by a literal dot."""
    if name.startswith(".") and not glob.startswith("."):
        return False
    plain = re.sub(r"\[\[:\w+:\]\]", "?", re.sub(r"\*+", "*", glob))
    return fnmatch.fnmatchcase(name, plain.replace("[^", "[!"))
