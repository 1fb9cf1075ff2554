"""Holds the state that all calls of a session share: its workspace, the file contents it has seen, its services."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct, field

from agentcli.errors import ToolError
from agentcli.llm.messages import Document, Image
from agentcli.patterns import lazy_pattern
from agentcli.tools.command import NO_GRANTS, Access, BackgroundJob, Grants
from agentcli.tools.sandbox import PathStatus, Sandbox, SandboxFacts, Use

if TYPE_CHECKING:
    from agentcli.safety.urls import UrlVerdict


class DataFile(Struct, frozen=True):
    """A stored result: its size in bytes, and the SHA-256 of its content in hex."""

    path: Path
    hash: str
    size: int


class DataFiles(Protocol):
    """A session's results that are too large for its conversation; equal ones are stored once. Blocks."""

    def store(self, content: bytes, call_id: str) -> DataFile: ...

    def find(self, call_id: str) -> Path | None:
        """Return the newest file of a call of this session."""


class Past(Protocol):
    """The whole log of a session, including entries that its requests no longer contain."""

    def entry(self, id: str) -> tuple[str, tuple[Image | Document, ...]] | None:
        """Return the text and the media of an entry, by its number in the log or its id."""

    def search(self, query: str) -> list[str]:
        """Return excerpts of entries, each with its number, the best first."""


class Memory(Protocol):
    """A project's memory files, by relative names. Each method but `index` raises `ToolError`; all of them block."""

    def index(self) -> list[tuple[str, str]]:
        """Return the names of the files, each with its first line."""

    def view(self, name: str) -> str: ...

    def write(self, name: str, text: str, *, before: str | None = None) -> None:
        """Create a file, or replace one whose text is still `before`."""

    def append(self, name: str, text: str) -> None:
        """Add a line to a file; a missing one is created."""

    def delete(self, name: str) -> None: ...

    def path_of(self, name: str) -> Path:
        """Return the path that a file has, or would have."""


class FileLedger:
    """The contents of files as a session last saw them, so that it changes no contents that it has not seen.

    Contents are compared by hash, not by time, because a checkout changes the times. The ledger also records the
    contents that a person was shown when they were asked about a call, so that only these are changed.
    """

    def __init__(self) -> None:
        self._seen: dict[Path, bytes] = {}  # hashes
        self._approved: dict[tuple[str, Path], bytes] = {}  # hashes, by the call and the file that it would change

    def record(self, path: Path, content: bytes) -> None:
        """Note that the session has seen a whole file."""
        self._seen[path] = _sha256(content)

    def record_digest(self, path: Path, digest: bytes) -> None:
        """Note that the session has seen a file that was read piece by piece; `digest` is its SHA-256."""
        self._seen[path] = digest

    def record_change(self, path: Path, before: bytes, after: bytes) -> None:
        """Note a change by one of our tools: a session that had seen the old contents knows the new ones."""
        if self._seen.get(path) == _sha256(before):
            self.record(path, after)

    def require_current(
        self,
        path: Path,
        content: bytes,
        advice: str = "read it first with file_read, or change parts of it with file_edit",
    ) -> None:
        """Raise `ToolError` unless the file was read in this session and has not changed since."""
        seen = self._seen.get(path)
        if seen is None:
            raise ToolError(f"{path.name} exists and was not read in this session: {advice}.", kind="validation_error")
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


class SessionGrants(Struct):
    """The exceptions that hold for every call of a session and its subagents, which share this record."""

    now: Grants = NO_GRANTS
    exposed: set[Path] = field(default_factory=set)  # secret files that commands may read where no sandbox hides them


class WorkspaceSettings(Struct):
    """The person's home folder, and the charset of files that are not UTF-8; empty if the settings name none."""

    home: Path = field(default_factory=Path.home)
    charset: str = ""


class SessionResources(Struct):
    """The services that a session offers its tools besides files and commands; None for one that it lacks."""

    data: DataFiles | None = None  # stores results that are too large to be shown
    web: Web | None = None
    past: Callable[[], Past] | None = None  # returns the session's log
    memory: Memory | None = None  # the project's memory files
    deps: Any = None  # the program's own object for the tools that it added


class Workspace(Struct, kw_only=True, dict=True):
    """The state that all calls of a session share."""

    cwd: Path  # relative paths start here
    sandbox: Sandbox
    is_open: Callable[[], bool] = lambda: True  # False until the sandbox is first used, if it is opened only then
    settings: WorkspaceSettings = field(default_factory=WorkspaceSettings)
    session_grants: SessionGrants = field(default_factory=SessionGrants)
    resources: SessionResources = field(default_factory=SessionResources)
    files: FileLedger = field(default_factory=FileLedger)
    shell_cwd: Path | None = None  # the folder in which the last command ended; None: `cwd`

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

    def usable_path(self, path: Path | str, access: Access, grants: Grants = NO_GRANTS) -> Path:
        """Return the real path of a file that may be read or written; models write it as text. Raises `ToolError`."""
        path = self.lexical_path(path) if isinstance(path, str) else path
        status = self.look(path, access, grants)
        if status.is_usable:
            return status.real
        roots = ", ".join(map(str, self.facts.roots))
        reason = f"is outside the workspace ({roots}) and may not be {'written' if access == 'write' else 'read'}."
        if status.place == "secret":
            reason = "is kept from tools (it may hold secrets, or a rule says so): the user has to grant it."
        raise ToolError(f"{path} {reason}", kind="permission_denied")

    def real_path(self, path: str) -> Path:
        """Return a path's real path, even outside the workspace. Raises `ToolError` if its links form a loop."""
        return self.look(self.lexical_path(path)).real

    def lexical_path(self, path: str) -> Path:
        """Return a path joined to the working directory, links not followed. Raises `ToolError` if it is not a path."""
        name = parse_name(path)
        if "\0" in name or not name:
            raise ToolError(f"{path!r} is not a path.", kind="invalid_parameters")
        if path == "~" or path.startswith("~/"):
            return self.settings.home / path[2:]
        return self.cwd / name

    def shown(self, path: Path) -> str:
        """Return a path as the model writes it: relative to the working directory if it is inside.

        A name that is not UTF-8 is quoted as in a shell, because a request cannot carry its bytes.
        """
        below = f"{str(self.real_cwd).rstrip(os.sep)}{os.sep}"
        return display_name(str(path).removeprefix(below) if path != self.real_cwd else ".")

    @cached_property
    def real_cwd(self) -> Path:
        return self.look(self.cwd).real


# Names that are not UTF-8: written as a shell takes them, `$'caf\xe9.txt'`, so that a request can carry them.

_NO_BYTE = lazy_pattern("[\ud800-\udc7f\udd00-\udfff]")  # half of a surrogate pair, which no path contains
_ESCAPED = lazy_pattern(r"[\\'\x00-\x1f\x7f\udc80-\udcff]")
_QUOTED = lazy_pattern(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
_ESCAPE = lazy_pattern(rb"\\(?:x([0-9a-f]{2})|(.))", re.DOTALL)


def is_utf8(text: str) -> bool:
    """Return False for a name whose bytes are not UTF-8, so that Python has decoded some as lone surrogates."""
    return text.isascii() or not re.search("[\ud800-\udfff]", text)


def display_name(path: str) -> str:
    """Return the path itself, or the way a shell quotes it if some of its bytes are not UTF-8."""
    return path if is_utf8(path) else f"$'{_ESCAPED.sub(_escape, path)}'"


def parse_name(text: str) -> str:
    """Return the path that `display_name` shows as this text; it may be quoted only in part, as `src/$'caf\\xe9'`."""
    if "$'" not in text or _NO_BYTE.search(text):
        return text
    path = _QUOTED.sub(lambda found: _unquote(found[1]), text)
    return text if is_utf8(path) else path  # `display_name` quotes no UTF-8


def _escape(found: re.Match[str]) -> str:
    char = found[0]  # a byte that is not UTF-8 is U+DC80 to U+DCFF, whose last 8 bits are the byte
    return f"\\{char}" if char in "\\'" else f"\\x{ord(char) & 0xFF:02x}"


def _unquote(quoted: str) -> str:
    content = quoted.encode(errors="surrogateescape")
    content = _ESCAPE.sub(lambda found: bytes.fromhex(found[1].decode()) if found[1] else found[2], content)
    return content.decode(errors="surrogateescape")


# The web as one session may use it. Only a call imports `web/pages.py`, which takes 55 ms.


class WebPage(Struct, frozen=True, kw_only=True):
    """A fetched page; `url` is its address after all redirects. `notes` are sentences about missing parts."""

    url: str
    title: str
    content_type: str
    text: str
    total_chars: int
    notes: tuple[str, ...] = ()


class SearchResult(Struct, frozen=True):
    title: str
    url: str
    excerpt: str


class SearchProvider(Protocol):
    async def search(self, query: str, max_results: int) -> Sequence[SearchResult]:
        """Return at most `max_results` results, the best first, as the engine gives them. Raises `ToolError`."""


class Web(Struct, kw_only=True):
    """The addresses that a session may fetch, and its search engine."""

    granted_hosts: Sequence[str] = ()  # the person's (`localhost:3000`, `*.example.com`; see `judge_url`), no project's
    find_search: Callable[[], SearchProvider | None] = lambda: None
    # Returns every address of a name at a port, the best first, or raises OSError. None: the machine resolves names.
    resolve: Callable[[str, int], Awaitable[Sequence[str]]] | None = None
    total_s: float = 30.0  # the limit of a whole fetch
    max_bytes: int = 10_000_000  # of a decompressed page
    _known: set[str] = field(default_factory=set)  # addresses that the person typed or a search found

    def note_typed(self, text: str) -> None:
        """Note the addresses in a text that the person wrote: they may be fetched without a question."""
        if "http" in text:
            from agentcli.safety.urls import urls_in

            self._known.update(urls_in(text))

    def judge(self, url: str) -> UrlVerdict:
        """Decide if an address may be fetched at once, only if the person agrees, or never; uses no network."""
        from agentcli.safety.urls import judge_url

        return judge_url(url, granted_hosts=self.granted_hosts, known_urls=self._known)

    async def fetch(self, url: str, *, max_chars: int) -> WebPage:
        """Return the page at an address that was permitted, cut to `max_chars` characters. Raises `ToolError`."""
        from agentcli.tools.web.pages import fetch_page

        return await fetch_page(self, url, max_chars=max_chars)

    async def search(self, query: str, *, max_results: int) -> tuple[SearchResult, ...]:
        """Return search results, whose addresses may then be fetched without a question. Raises `ToolError`."""
        from agentcli.tools.web.pages import search_web

        results = await search_web(self.find_search(), query, max_results=max_results)
        self._known.update(result.url for result in results)
        return results
