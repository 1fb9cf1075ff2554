"""Defines what the agent needs from the machine, which `infra` implements, and the hooks that others implement."""

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

from agentcli.agent.permissions.modes import Mode
from agentcli.conversation.entries import Body, Entry, FileChange, FilesChanged
from agentcli.llm.messages import ToolResult, Usage

NEWEST = ""  # as a parent's id: the newest entry


def subagents_owner(session_id: str) -> str:
    """Return the `user_id` of a session's subagents, which are listed only for this id."""
    return f"subagents of {session_id}"


class SessionInfo(Struct, frozen=True):
    """A session without its entries. Times are Unix times; `title` and `last_prompt` are prompts in one line."""

    id: str
    cwd: str
    title: str
    created: float
    updated: float
    entries: int
    name: str = ""
    last_prompt: str = ""
    user_id: str = ""


class SearchHit(Struct, frozen=True):
    """An entry that a search found, with its `kind`, the line around the words, and the session's `title`."""

    session_id: str
    entry_id: str
    kind: str
    excerpt: str
    time: float
    title: str


class StoredEntries(Struct, frozen=True):
    """Entries that are on disk, with their place in the session (`seq` of the first one)."""

    entries: tuple[Entry, ...]
    first_seq: int


class AppendedEntries(Struct, frozen=True):
    """Entries that have their ids already; `committed` resolves once they are on disk, or raises `StorageError`."""

    entries: tuple[Entry, ...]
    committed: Awaitable[StoredEntries]


class SessionLog(Protocol):
    """The log of one open session; entries are stored in the order they are appended, each call in one transaction."""

    @property
    def session_id(self) -> str: ...

    def append(self, *bodies: Body, parent_id: str | None = NEWEST) -> AppendedEntries:
        """Queue entries under new ids, without waiting. The first follows `parent_id`, each other the one before."""

    def is_wanted(self) -> bool:
        """Return True once another program asks for the session, which must then be closed soon."""

    async def close(self) -> None:
        """Wait until all entries are stored, and release the session."""


@runtime_checkable
class SessionStore(Protocol):
    """Sessions by id. Every method raises `StorageError` when the store cannot be read or written.

    A lasting store outlives the program; the sessions of another one leave nothing on disk.
    """

    is_lasting: bool

    async def create(
        self, *, cwd: Path, session_id: str | None = None, name: str = "", user_id: str = ""
    ) -> SessionLog:
        """Create and own a session; nothing is stored before its first entry."""

    async def open(self, session_id: str, *, take_over: bool = False) -> tuple[SessionLog, list[Entry]]:
        """Open and own an existing session; return its log and entries. A shortened id must be unique.

        With `take_over`, the program that has it open is asked to close it. Raises `SessionInUse`.
        """

    async def fork(
        self, session_id: str, *, cwd: Path, new_id: str | None = None, name: str = "", at: str | None = None
    ) -> tuple[SessionLog, list[Entry]]:
        """Create a session that begins with the entries of another one, which stays as it is.

        With `at`, the entries end with the one of that id, on any branch. A shortened id must be unique, and of equal
        ids the newest counts.
        """

    async def load(
        self, session_id: str, *, after: int = 0, user_id: str | None = None
    ) -> tuple[SessionInfo, list[Entry]]:
        """Load a session to read, without its first `after` entries; with `user_id`, only a session of that user."""

    async def holder(self, session_id: str) -> str | None:
        """Return the address of the program that has the session open ("" if it gave none); None if it is not open."""

    async def list(
        self, *, cwd: Path | None = None, limit: int = 50, user_id: str | None = None
    ) -> Sequence[SessionInfo]:
        """Return the sessions of a directory or user, newest first; those of subagents only for `subagents_owner`."""

    async def search(
        self, text: str, *, cwd: Path | None = None, limit: int = 20, user_id: str | None = None
    ) -> Sequence[SearchHit]:
        """Return the entries that contain a word beginning with each word of `text`, newest first.

        It searches prompts, answers, calls, results, summaries and notes; of a fork only its own entries. Raises
        `StorageError` for a text without a letter or digit.
        """

    async def remove(self, session_id: str) -> None:
        """Move a session and its subagents to the trash; its forks keep what they share. Refused while it is open."""

    async def restore(self, session_id: str) -> str:
        """Restore what `remove` took last and return its id. Refused if there is a session of that id again."""

    async def redact(self, session_id: str, secrets: Sequence[str]) -> int:
        """Replace these texts by `[redacted]` in every entry, its subagents' too, and note in how many places.

        Entries that the session shares with those it was forked from, or with its own forks, change for all of them;
        everything in the trash changes, too. Refused while the session is open.
        """

    async def file_changes(self) -> Sequence[tuple[str, Entry]]:
        """Return the entries of all sessions that record changes of files, oldest first, each with its session's id."""

    async def rename(self, session_id: str, name: str) -> None:
        """Rename a session, also one that is open. Raises `StorageError` if there is none of that id."""

    async def close(self) -> None: ...


@runtime_checkable
class ConversationStore(Protocol):
    """Keeps whole conversations for a caller, by ids of theirs. Each method raises `StorageError`.

    The bytes are JSON in a form of agentcli's own; `readable_from` has the versions that can be read.
    """

    async def load(self, conversation_id: str) -> bytes | None:
        """Return the conversation as it was last saved; None if there is none."""

    async def save(self, conversation_id: str, data: bytes) -> None:
        """Replace the conversation as a whole."""

    async def reset(self, conversation_id: str) -> None:
        """Forget the conversation; nothing happens if there is none."""


LOCK_TIMEOUT_S = 30.0
MAX_LOCKED = 500  # files; each lock is a file


class Locks(Protocol):
    """Locks that keep calls which change one file apart, in this process and in others."""

    def held(self, keys: tuple[str, ...], *, timeout_s: float) -> AbstractAsyncContextManager[None]:
        """Hold all of the sorted keys while the body runs. Raises `ToolError` if one is not free in time."""


class Restriction(Struct, frozen=True):
    """A rule that denies calls or asks about them; `quote` is the line of a project's file that it stands for."""

    verb: Literal["ask", "deny"]
    rule: str
    quote: str = ""


RestoredHow = Literal["restored", "removed", "merged", "conflict", "kept"]


class RestoredFile(Struct, frozen=True):
    """A file (absolute path) whose changes are taken back; `kept` where nothing had to be done."""

    path: str
    how: RestoredHow
    why: str = ""


class Restoration(Protocol):
    """A plan that takes changes of files back; `changes` are its own changes, in the form of the log."""

    @property
    def files(self) -> Sequence[RestoredFile]: ...

    @property
    def changes(self) -> tuple[FileChange, ...]: ...

    async def carry_out(self) -> Sequence[RestoredFile]:
        """Take the changes back, and return the outcome for each file. It cannot be interrupted. Raises `ToolError`."""


class Checkpoints(Protocol):
    """Records what the calls of one session do to files, and takes it back. Each method raises `ToolError`."""

    async def begin(self, call_id: str, paths: Sequence[Path] | None) -> Any:
        """Record the files that a call may change, with None all of the workspace; return the mark for `end`."""

    def files_scanned(self) -> int:
        """Return the number of files that a running `begin` has looked at."""

    async def end(self, mark: Any) -> FilesChanged | None:
        """Return what the call has changed; None if nothing."""

    async def forget(self, mark: Any | None) -> None:
        """Forget a call whose changes are in the log; with None, those that `interrupted` returned."""

    async def under_way(self) -> Sequence[FilesChanged]:
        """Return what calls that go on, such as background jobs, have changed so far; each change only once."""

    async def interrupted(self, reported: Mapping[str, float]) -> Sequence[FilesChanged]:
        """Return the changes of killed calls. `reported` has the times when calls in the log were stored, by id."""

    def content(self, id: str) -> bytes:
        """Return what a file held, by the id in its `FileState`. Blocks. Raises `OSError` where it is not kept."""

    async def restoration(self, changes: Sequence[FileChange]) -> Restoration:
        """Return the way to take back changes, which are in the order they were made."""

    async def aclose(self) -> None: ...


class GrantStore(Protocol):
    """Permission rules a person wants for good in this project. Each method raises `StorageError`."""

    def list(self) -> Sequence[str]:
        """Return the grants, oldest first."""

    def restrictions(self) -> Sequence[Restriction]:
        """Return rules that an earlier version made of lines of instruction files; they hold until they are removed."""

    def add(self, rule: str) -> None:
        """Add a grant; nothing changes if it is there already."""

    def remove(self, rule: str) -> None:
        """Remove a grant or a restriction, by its rule."""


StreamStatus = Literal["running", "complete", "failed"]


class StreamEvent(Struct, frozen=True):
    """An event of a stream; `data` is one JSON object in UTF-8."""

    id: int
    data: bytes


class StreamState(Struct, frozen=True):
    """The position of a stream. `last_id` is 0 while it has no event; `note` is its writer's."""

    status: StreamStatus
    last_id: int
    note: str = ""


class EventStore(Protocol):
    """Streams of events by id. Every method raises `StorageError` when the store cannot be read or written.

    The ids of a stream's events are integers from 1 that only grow, also past events that were removed. An id is given
    out, and an event read, only after it was stored.
    """

    async def append(
        self,
        stream_id: str,
        events: Sequence[bytes],
        *,
        status: StreamStatus | None = None,
        note: str | None = None,
        if_note: str | None = None,
        after: int = 0,
    ) -> int:
        """Store events, all or none, and give the id of the last one, or the stream's last id for none.

        They are numbered in a row from the stream's last id on, or from `after` where that is greater. `status` and
        `note`, unless None, are stored with them; a new stream is `running`. `if_note`, unless None, is what the
        note must be before, "" for a new stream: if it is another one, nothing is stored and `StreamMoved` is raised.
        """

    async def read(
        self, stream_id: str, after: int = 0, count: int = 100, *, wait_s: float = 0.0
    ) -> Sequence[StreamEvent]:
        """Return the first `count` events after an id; where there is none, wait up to `wait_s` seconds for one."""

    async def has(self, stream_id: str, id: int) -> bool:
        """Return True if the event is stored: a reader can then continue after it."""

    async def state(self, stream_id: str) -> StreamState | None:
        """Return the state of a stream; None if there is no such stream."""

    async def running(self) -> Sequence[str]:
        """Return the ids of streams that are `running`."""

    async def remove(self, stream_id: str) -> None:
        """Remove the events for good, with status and note; ids of later events are greater than theirs were."""

    async def close(self) -> None: ...


EventName = Literal[
    "SessionStart", "SessionEnd", "UserPromptSubmit", "PreToolUse", "PostToolUse", "PostToolUseFailure",
    "PermissionRequest", "PermissionDenied", "Notification", "Stop", "StopFailure", "SubagentStart", "SubagentStop",
    "PreCompact", "PostCompact", "UserPromptExpansion", "DirectoryAdded",
]  # fmt: skip
Decision = Literal["", "allow", "ask", "deny"]


class CallRecord(Struct, frozen=True, kw_only=True):
    """A call, for hooks. `id` is the model's, `caller` the agent that made the call, `mode` the permission mode."""

    id: str
    tool: str
    version: str
    caller: str
    mode: Mode


class TurnHooks(Protocol):
    """Called while a turn runs, in order, and waited for."""

    async def on_turn_end(self, turn: int, usage: Usage, model: str, provider: str) -> bool:
        """Called after each reply, before its calls; False ends the turn. An error here ends it with an error event."""
        return True

    async def on_message(self, entry: Entry) -> None:
        """Called when a reply or a result is stored. An error here is logged."""
        return

    async def on_error(self, text: str, is_retryable: bool) -> None:
        """Called when the provider or the resolver failed. An error here is ignored."""
        return


class HookAnswer(Struct, frozen=True):
    """A hook's answer to a call that is about to run.

    The decision "allow" permits a call that would ask, "ask" asks the person, "deny" denies it; no hook overrides deny
    rules and catastrophic commands. `input` replaces the arguments, `context` follows the result, `stops` ends a turn.
    """

    decision: Decision = ""
    reason: str = ""
    input: dict[str, Any] | None = None
    context: str = ""
    stops: bool = False


class EventAnswer(HookAnswer, frozen=True):
    """The answer of hooks to an event. `notices` are for the person, `problem` says what went wrong with a hook."""

    notices: tuple[str, ...] = ()
    problem: str = ""

    @property
    def blocks(self) -> bool:
        return self.decision == "deny"


class EventHooks(Protocol):
    """Answers events of a session."""

    async def fire(self, event: EventName, *, agent_id: str = "main", **fields: Any) -> EventAnswer:
        """Return the answer to an event, such as `Stop`, which the fields describe. Never raises.

        For an event about a call, `call` is one of the fields.
        """


class CallHooks(Protocol):
    """Called around every call of a tool, in the order of their list, and waited for."""

    async def before_call(self, record: CallRecord, input: dict[str, Any]) -> HookAnswer | None:
        """Return an answer, or None. `input` has the changes of earlier hooks. Raises `ToolError` to deny the call."""

    async def after_call(self, record: CallRecord, result: ToolResult) -> str | None:
        """Return text that the model reads after the result, or None. An error here ends the turn."""


class NoHooks(TurnHooks):
    """Hooks that do nothing, to inherit from."""
