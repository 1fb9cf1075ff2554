"""Decides if a program may look at a path: inside the workspace and no secret, or known to be public."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from agentcli.safety.commands.reader.expansion import PROCESS, Field, State, normal
from agentcli.safety.commands.reader.globs import finds, has_letters, is_plain, names_of_both
from agentcli.safety.commands.records import Places
from agentcli.safety.paths.secret import SECRET_GLOBS, SECRET_HOME_PATHS

# Facts about the machine, readable by everyone and used by many scripts.
_PUBLIC = frozenset(
    (
        "/etc/os-release /usr/lib/os-release /etc/lsb-release /etc/debian_version /etc/redhat-release "
        "/etc/alpine-release /etc/issue /etc/hostname /etc/timezone /proc/cpuinfo /proc/meminfo /proc/version "
        "/proc/loadavg /proc/uptime /proc/stat /proc/filesystems /proc/swaps /dev/null"
    ).split()
)
# Folders on every system. A program that shows contents can only say that they are folders.
_FOLDERS = frozenset("/ /bin /boot /dev /etc /home /lib /opt /proc /root /sbin /srv /sys /tmp /usr /var".split())

# Names of secrets that a glob could find; `Places.is_readable` has the last word. First common names, for globs as open
# as `s*` and `*.json`, then the patterns of all secret names, for globs that share letters with one.
_USUAL = (
    ".env", ".env.local", ".env.production", ".netrc", ".npmrc", ".pypirc", ".git-credentials", ".pgpass", ".htpasswd",
    "id_rsa", "id_ed25519", "server.pem", "server.key", "credentials", "credentials.json", "credentials.xml",
    "secrets.json", "secrets.yaml", "secrets.yml", "secrets.toml", "secrets.ini", "pgpass.conf", "wallet.dat",
    "cert.p12", "cert.pfx", "store.jks", "key.asc",
)  # fmt: skip
_NAMED_LIKE = tuple(dict.fromkeys((*SECRET_GLOBS, *(path.rpartition("/")[2].lower() for path in SECRET_HOME_PATHS))))

WILD = re.compile(r"[*?\[]")  # for the shell, git and ripgrep
# A search through all files, or all with one extension, finds no more than a search through the folder.
_OF_A_KIND = re.compile(r"\*+(\.\w+)?")
_MOST_GLOBS = 200  # in one command; each takes half a millisecond
_MOST_BRACES, _MOST_CHOICES = 3, 30  # in a filter; usual is one pair


class ReadCheck:
    """Checks the paths of one command and remembers them. `reads` are absolute."""

    def __init__(self, places: Places, state: State) -> None:
        self.places = places
        self.state = state
        self.reads: list[str] = []
        self._globs = 0

    def problem(self, fields: Iterable[Field], kind: str) -> str:
        """The reason why a path may not be looked at, or an empty string. `kind` is as in `Options.operands`."""
        for field in fields:
            if why := self._problem(field, kind):
                return why
        return ""

    def within(self, folder: Field) -> ReadCheck | None:
        """The same check from another folder; None if that may not be entered."""
        if not folder.is_known or folder.is_glob or self.problem([folder], "names"):
            return None
        return ReadCheck(self.places, self.state.at(*self.paths(folder)))

    def paths(self, field: Field) -> Iterator[str]:
        """The absolute paths a field may mean, `..` not resolved; none if the shell may be anywhere."""
        if field.text.startswith("/"):
            yield field.text
        else:
            for place in self.state.places or ():
                yield f"{place}/{field.text}"

    def _problem(self, field: Field, kind: str) -> str:
        if field.shows_secret:
            return "it may show a variable that holds a secret"
        if kind == "here" or (kind == "text" and not field.is_glob):
            return ""
        if not field.is_known:
            return "a path depends on what only the shell knows"
        if field.text in ("", "-", PROCESS):
            return ""
        paths = list(self.paths(field))
        if not paths:
            return "it is not certain in which folder it runs"
        for path in paths:
            self.reads.append(normal(path))
            is_fine = self._glob_is_fine(path, kind) if field.is_glob else self._is_fine(path, kind)
            if not is_fine:
                return f"{field.text} may hold secrets or is outside the workspace"
        return ""

    def _is_fine(self, path: str, kind: str) -> bool:
        if kind in ("content", "lines", "search", "sizes") and path in _PUBLIC:
            return True
        if kind in ("lines", "sizes") and path in _FOLDERS:
            return True
        if self.places.is_readable(Path(path)):
            return True
        return kind == "facts" and not path.endswith("..") and self.places.is_readable(Path(path).parent)

    def filter_problem(self, fields: Iterable[Field]) -> str:
        """The reason why a search may not be narrowed to files of these names, as with `grep --include` and `rg -g`."""
        for field in fields:
            is_long = field.text.count("{") > _MOST_BRACES or field.text.count(",") > _MOST_CHOICES
            if not field.is_known or is_long or "\\" in field.text:
                return "which files are searched cannot be told"
            for pattern in _alternatives(field.text):
                is_fine = all(self._filter_is_fine(place, pattern) for place in self.state.places or ("",))
                if not is_fine and not pattern.startswith("!"):
                    return f"{field.text} looks for secrets"
        return ""

    def _filter_is_fine(self, place: str, pattern: str) -> bool:
        """True if no part of a pattern is a secret, or a glob that is meant to find one."""
        parts = [place, *filter(None, pattern.split("/"))]
        return all(
            self._is_fine("/".join(parts[: at + 1]), "search")
            if not WILD.search(part)
            else not self._may_find_secret(parts[: at + 1], is_search=True)
            for at, part in enumerate(parts[1:], start=1)
        )

    def _glob_is_fine(self, path: str, kind: str) -> bool:
        self._globs += 1
        if self._globs > _MOST_GLOBS:
            return False
        parts = path.split("/")
        first = next((at for at, part in enumerate(parts) if WILD.search(part)), len(parts))
        folder = Path("/".join(parts[:first]) or "/")
        if ".." in parts[first:] or not self.places.is_readable(folder):
            return False
        if any(part.startswith(".") and WILD.search(part) for part in parts[first:]):
            return False  # `.*` finds the parent folder
        if kind not in ("content", "lines", "search"):
            return True
        return not self._may_find_secret(parts, is_search=kind == "search")

    def _may_find_secret(self, parts: Sequence[str], *, is_search: bool) -> bool:
        """True if the last part could find a secret; for a search, if it is meant to find one."""
        name, glob = parts[-1], parts[-1].lower()
        if WILD.search(name) and not (is_plain(name) and (is_search or has_letters(name))):
            return True
        if _OF_A_KIND.fullmatch(glob):
            names = {glob.replace("*", "x"), *(() if is_search else _usual_found(glob))}
        elif WILD.search(name):
            names = {*names_of_both(glob, _NAMED_LIKE), *_usual_found(glob)}
        else:
            names = {name}
        return any(not self.places.is_readable(Path("/".join(parts[:-1]), each)) for each in names)


def _usual_found(glob: str) -> Iterator[str]:
    return (name for name in _USUAL if finds(glob, name))


def _alternatives(pattern: str) -> Iterator[str]:
    """A pattern without its braces: `*.{ts,tsx}` is `*.ts` and `*.tsx`."""
    found = re.search(r"\{([^{}]*)\}", pattern)
    if found is None:
        yield pattern
        return
    for choice in found[1].split(","):
        yield from _alternatives(pattern[: found.start()] + choice + pattern[found.end() :])
