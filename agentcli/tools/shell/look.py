"""Whether a program may look at a path: inside the workspace, no secret, or known to be public."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from agentcli.tools.shell.expansion import PROCESS, Field, State, normal
from agentcli.tools.shell.records import Places

# What a machine is, readable by everyone and asked for by many scripts.
_PUBLIC = frozenset(
    (
        "/etc/os-release /usr/lib/os-release /etc/lsb-release /etc/debian_version /etc/redhat-release "
        "/etc/alpine-release /etc/issue /etc/hostname /etc/timezone /proc/cpuinfo /proc/meminfo /proc/version "
        "/proc/loadavg /proc/uptime /proc/stat /proc/filesystems /proc/swaps /dev/null"
    ).split()
)
# Folders on every system: a program that shows contents can only say that they are folders.
_FOLDERS = frozenset("/ /bin /boot /dev /etc /home /lib /opt /proc /root /sbin /srv /sys /tmp /usr /var".split())

# Names of secrets that a glob could find; whether one is refused is asked of the places.
_SECRETS = (
    ".env", ".env.local", ".env.production", ".netrc", ".npmrc", ".pypirc", ".git-credentials", ".pgpass", ".htpasswd",
    "id_rsa", "id_ed25519", "server.pem", "server.key", "credentials", "credentials.json", "secrets.json",
    "secrets.yaml", "secrets.toml", "cert.p12", "cert.pfx", "store.jks", "key.asc",
)  # fmt: skip


class Look:
    """Judges the paths of one command and remembers them. `reads` are absolute."""

    def __init__(self, places: Places, state: State) -> None:
        self.places = places
        self.state = state
        self.reads: list[str] = []

    def problem(self, fields: Iterable[Field], kind: str) -> str:
        """Why one of the paths may not be looked at, or an empty string. `kind` is as in `Options.operands`."""
        for field in fields:
            if why := self._problem(field, kind):
                return why
        return ""

    def within(self, folder: Field) -> Look | None:
        """The same look from another folder; None when it may not be entered."""
        if not folder.is_known or folder.is_glob or self.problem([folder], "names"):
            return None
        return Look(self.places, self.state.at(*self.paths(folder)))

    def paths(self, field: Field) -> Iterator[str]:
        """The absolute paths a field may mean, `..` still in them; none where the shell may stand anywhere."""
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
                return f"{field.text} is outside the workspace or secret"
        return ""

    def _is_fine(self, path: str, kind: str) -> bool:
        if kind in ("content", "lines", "search", "sizes") and path in _PUBLIC:
            return True
        if kind in ("lines", "sizes") and path in _FOLDERS:
            return True
        if self.places.is_readable(Path(path)):
            return True
        return kind == "facts" and not path.endswith("..") and self.places.is_readable(Path(path).parent)

    def _glob_is_fine(self, path: str, kind: str) -> bool:
        if self.places.matches is not None:
            found = self.places.matches(Path(path))
            return found is not None and all(self._is_fine(str(each), kind) for each in found)
        parts = path.split("/")
        first = next((at for at, part in enumerate(parts) if re.search(r"[*?\[]", part)), len(parts))
        folder = Path("/".join(parts[:first]) or "/")
        if ".." in parts[first:] or not self.places.is_readable(folder):
            return False
        if any(part.startswith(".") and re.search(r"[*?\[]", part) for part in parts[first:]):
            return False  # `.*` finds the folder above
        return kind not in ("content", "lines") or not self._may_find_secret(folder, parts[-1])

    def _may_find_secret(self, folder: Path, pattern: str) -> bool:
        return any(
            (pattern.startswith(".") or not name.startswith("."))
            and fnmatch.fnmatchcase(name, pattern)
            and not self.places.is_readable(folder / name)
            for name in _SECRETS
        )
