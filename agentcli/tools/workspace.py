"""Owns the state that all calls of a session share: its workspace, the file contents it has seen, and its services."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from agentcli.errors import ToolError
from agentcli.llm.messages import Document, Image
from agentcli.tools.command import NO_GRANTS, Access, BackgroundJob, Grants
from agentcli.tools.path_names import display_name, parse_name
from agentcli.tools.sandbox import PathStatus, Sandbox, SandboxFacts, Use
from agentcli.tools.web.web import Web


class DataFile(Struct, frozen=True):
    """A stored result: its size in bytes, and the SHA-256 of its content in hex."""

    path: Path
    hash: str
    size: int


class DataFiles(Protocol):
    """The results of one session that are too large for its conversation. Equal contents are stored once.

    Both methods block, and raise `OSError`.
    """

    def store(self, content: bytes, call_id: str) -> DataFile: ...

    def find(self, call_id: str) -> Path | None:
        """Return the newest file of a call of this session."""


class Past(Protocol):
    """The whole log of a session, with what its requests no longer hold."""

    def entry(self, id: str) -> tuple[str, tuple[Image | Document, ...]] | None:
        """Return the text and the media of an entry, by its number in the log or its id."""

    def search(self, query: str) -> list[str]:
        """Return excerpts of entries, each with its number, the best first."""


class Memory(Protocol):
    """A project's memory files, by relative names. Each method but `index` raises `ToolError`; all of them block."""

    def index(self) -> list[tuple[str, str]]:
        """Return the names of the files, each with its first line."""

    def view(self, name: str) -> str: ...

    def write(self, name: str, text: str) -> None:
        """Create or replace a file; an existing one must have been viewed since it last changed."""

    def append(self, name: str, text: str) -> None:
        """Add a line to a file; a missing one is created."""

    def delete(self, name: str) -> None: ...

    def place_of(self, name: str) -> Path:
        """Return the path that a file has, or would have."""


class FileLedger:
    """The contents of files as a session last saw them, so that it changes nothing that it did not look at.

    Contents are compared by hash, not by time, because a checkout changes the times. The ledger also has what a person
    was shown of a file when they were asked about a call, so that no other contents are changed than they approved.
    """

    def __init__(self) -> None:
        self._seen: dict[Path, bytes] = {}
        self._approved: dict[tuple[str, Path], bytes] = {}

    def record(self, path: Path, content: bytes) -> None:
        """Note that the session has seen a whole file."""
        self._seen[path] = _sha256(content)

    def record_digest(self, path: Path, digest: bytes) -> None:
        """Note that the session has seen a file that was read piece by piece; `digest` is its SHA-256."""
        self._seen[path] = digest

    def record_change(self, path: Path, before: bytes, after: bytes) -> None:
        """Note a change that we made: a session that knew the old contents knows the new ones."""
        if self._seen.get(path) == _sha256(before):
            self.record(path, after)

    def hash_of(self, path: Path) -> str:
        """Return the first 12 hex digits of a file's SHA-256 as it was last seen; empty if it was not seen."""
        return self._seen[path].hex()[:12] if path in self._seen else ""

    def require_current(self, path: Path, content: bytes) -> None:
        """Raise `ToolError` unless the file was read in this session and has not changed since."""
        seen = self._seen.get(path)
        if seen is None:
            raise ToolError(
                f"{path.name} exists and was not read in this session: read it first with file_read, "
                "or change parts of it with file_edit.",
                kind="validation_error",
            )
        if seen != _sha256(content):
            raise ToolError(f"{path.name} has changed since it was read: read it again.", kind="validation_error")

    def approve(self, call_id: str, path: Path, content: bytes) -> None:
        """Note the contents that a call would change, as the person sees them when they are asked."""
        self._approved[call_id, path] = _sha256(content)

    def require_as_approved(self, call_id: str, path: Path, content: bytes) -> None:
        """Raise `ToolError` if the file has changed since a person was asked about this call."""
        approved = self._approved.pop((call_id, path), None)
        if approved is not None and approved != _sha256(content):
            raise ToolError(f"{path.name} has changed since it was approved: read it again.", kind="validation_error")


def _sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


@dataclass
class SessionGrants:
    """The exceptions that hold for every call of a session and its subagents, which share this record.

    `exposed` are secret files that the person lets commands read where no sandbox hides them.
    """

    now: Grants = NO_GRANTS
    exposed: set[Path] = field(default_factory=set)


@dataclass
class WorkspaceSettings:
    """The person's home folder, and the charset of files that are not UTF-8 (empty: it is detected)."""

    home: Path = field(default_factory=Path.home)
    charset: str = ""


@dataclass
class SessionResources:
    """The services that a session offers its tools beside files and commands; None stands for one it lacks.

    `data` stores results that are too large to be shown, `past` returns the session's log, and `memory` holds the
    project's memory files.
    """

    data: DataFiles | None = None
    web: Web | None = None
    past: Callable[[], Past] | None = None
    memory: Memory | None = None


@dataclass(kw_only=True)
class Workspace:
    """The state that all calls of a session share.

    `cwd` anchors relative paths, `shell_cwd` is the folder that the last command ended in (None: `cwd`). The sandbox
    may be opened when it is first used; `is_open` returns False until then, and nothing runs in it.
    """

    cwd: Path
    sandbox: Sandbox
    is_open: Callable[[], bool] = lambda: True
    settings: WorkspaceSettings = field(default_factory=WorkspaceSettings)
    session_grants: SessionGrants = field(default_factory=SessionGrants)
    resources: SessionResources = field(default_factory=SessionResources)
    files: FileLedger = field(default_factory=FileLedger)
    shell_cwd: Path | None = None

    @property
    def grants(self) -> Grants:
        return self.session_grants.now

    @grants.setter
    def grants(self, grants: Grants) -> None:
        self.session_grants.now = grants

    @property
    def facts(self) -> SandboxFacts:
        return self.sandbox.facts(self.grants)

    def preload(self) -> None:
        """Open the sandbox ahead of the first call. It imports for some 20 ms, so call it in a thread."""
        _ = self.sandbox.jobs

    def running_jobs(self) -> list[BackgroundJob]:
        return [job for job in self.sandbox.jobs.list() if job.is_running] if self.is_open() else []

    def look(self, path: Path, use: Use = "read", grants: Grants = NO_GRANTS) -> PathStatus:
        return self.sandbox.look(path, use, self.grants + grants)

    def usable_path(self, path: Path, access: Access, grants: Grants = NO_GRANTS) -> Path:
        """Return the real path of a file that may be read or written.

        Raises:
            ToolError: (permission_denied) If it is a secret file or lies outside the workspace, and is not granted.
        """
        status = self.look(path, access, grants)
        if status.is_usable:
            return status.real
        if status.place == "secret":
            why = "is kept from tools (it may hold secrets, or a rule says so): the user has to grant it."
        else:
            where = ", ".join(map(str, self.facts.roots))
            why = f"is outside the workspace ({where}) and may not be {'written' if access == 'write' else 'read'}."
        raise ToolError(f"{path} {why}", kind="permission_denied")

    def readable(self, path: str, grants: Grants = NO_GRANTS) -> Path:
        """Return the real path to read for a path that the model wrote. Raises `ToolError` as `usable_path` does."""
        return self.usable_path(self.lexical_path(path), "read", grants)

    def writable(self, path: str, grants: Grants = NO_GRANTS) -> Path:
        """Return the real path to write for a path that the model wrote. Raises `ToolError` as `usable_path` does."""
        return self.usable_path(self.lexical_path(path), "write", grants)

    def real_path(self, path: str) -> Path:
        """Return where a path leads, even outside the workspace.

        Raises:
            ToolError: (invalid_parameters) If its links form a loop.
        """
        return self.look(self.lexical_path(path)).real

    def lexical_path(self, path: str) -> Path:
        """Return a path joined to the working directory, without following links.

        Raises:
            ToolError: (invalid_parameters) If the text cannot be a path.
        """
        name = parse_name(path)
        if "\0" in name or not name:
            raise ToolError(f"{path!r} is not a path.", kind="invalid_parameters")
        if path == "~" or path.startswith("~/"):
            return self.settings.home / path[2:]
        return self.cwd / name

    def shown(self, path: Path) -> str:
        """Return a path as the model writes it: relative to the working directory if it is below that.

        A name that is not UTF-8 is quoted as a shell does it, because a request cannot carry its bytes.
        """
        below = f"{str(self.real_cwd).rstrip(os.sep)}{os.sep}"
        return display_name(str(path).removeprefix(below) if path != self.real_cwd else ".")

    @cached_property
    def real_cwd(self) -> Path:
        return self.look(self.cwd).real
