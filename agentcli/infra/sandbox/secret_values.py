"""Reads which values the secret files of a workspace hold, so that they can be masked wherever they are shown."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from agentcli.infra.sandbox.files import open_to_read
from agentcli.tools.secrets.settings import secret_values

MOST_FILES = 200
LARGEST_FILE = 256 * 1024  # bytes; larger ones are databases, and certificates by the thousand
MOST_BYTES = 2 * 1024 * 1024
MOST_VALUES = 1_000
_LONGEST_GIT_S = 5.0

# It reads the working copy and starts nothing that a repository names.
_GIT_GREP = (
    *("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "protocol.allow=never", "grep"),
    *(
        "--no-recurse-submodules",
        "--no-textconv",
        "--no-color",
        "--no-line-number",
        "-h",
        "-o",
        "-I",
        "-F",
        "-f",
        "-",
        "--",
        ".",
    ),
)

_Stamp = tuple[int, int, int]


class _File(Struct, frozen=True):
    stamp: _Stamp
    values: frozenset[str]


class SecretValues:
    """Of one workspace. A file is read again once it has changed; `environment` is what git runs in.

    A value that a file tracked by git contains is no secret, unless that file is itself one of the secret ones.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._files: dict[Path, _File] = {}
        self._looking = threading.Lock()
        self._tracked: dict[tuple[Path, ...], tuple[frozenset[str], frozenset[str]]] = {}

    def held_by(
        self, files: Iterable[Path], roots: Sequence[Path], *, apart_from: Path | None = None
    ) -> frozenset[str]:
        """The values in `files`, but for those of the file at the real path `apart_from`."""
        with self._looking:
            self._files = dict(self._looked_at(files))
            shown: frozenset[str] = frozenset()
            if apart_from is not None:
                its = (held for file, held in self._files.items() if os.path.realpath(file) == str(apart_from))
                shown = shown.union(*(held.values for held in its))
            values = set[str]().union(*(held.values for held in self._files.values()))
            found = frozenset(sorted(values, key=len, reverse=True)[:MOST_VALUES])
            return found - self._in_tracked_files(found, roots) - shown

    def _looked_at(self, files: Iterable[Path]) -> Iterable[tuple[Path, _File]]:
        left, count = MOST_BYTES, 0
        for path in sorted(set(files), key=lambda path: (len(path.parts), path)):
            with suppress(OSError, UnicodeError):
                status = path.stat()
                if not 0 < status.st_size <= min(LARGEST_FILE, left) or count >= MOST_FILES:
                    continue
                stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
                known = self._files.get(path)
                if known is None or known.stamp != stamp:
                    known = _File(stamp, _values_in(path))
                left, count = left - status.st_size, count + 1
                yield path, known

    def _in_tracked_files(self, values: frozenset[str], roots: Sequence[Path]) -> frozenset[str]:
        """Those of the values that stand in a file which git tracks; none where there is no git."""
        if not values:
            return values
        key = tuple(roots)
        asked, found = self._tracked.get(key, (frozenset(), frozenset()))
        if asked != values:
            found = frozenset().union(*(self._grep(values, root) for root in roots))
            self._tracked[key] = (values, found)
        return found

    def _grep(self, values: frozenset[str], root: Path) -> frozenset[str]:
        secret = [f":(exclude,literal){file.relative_to(root)}" for file in self._files if file.is_relative_to(root)]
        lines = "\n".join(value for value in values if "\n" not in value)
        try:
            done = subprocess.run(
                [*_GIT_GREP, *secret],
                cwd=root,
                env=self._environment,
                input=lines.encode(errors="surrogateescape"),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=_LONGEST_GIT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return frozenset()
        return values.intersection(done.stdout.decode(errors="surrogateescape").split("\n"))


def _values_in(path: Path) -> frozenset[str]:
    """Nothing where it is no text."""
    with open_to_read(path.resolve()) as file:
        content = file.read(LARGEST_FILE)
    if b"\0" in content:
        return frozenset()
    return frozenset(secret_values(content.decode("utf-8-sig", "replace")))
