"""Defines the interfaces to the machine, which `infra` implements, and the hooks, which other code implements."""

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

from agentcli.agent.permissions.modes import Mode
from agentcli.conversation.entries import Body, Entry, FileChange, FilesChanged
from agentcli.llm.messages import ToolResult, Usage

NEWEST = ""  # as the id of a parent, it means the newest entry
ONE_SHOTS = "one-shots"  # as a `user_id`, it marks the sessions of `agentcli -p`, which are not conversations


def subagents_owner(session_id: str) -> str:
    """Return the `user_id` of the subagents of a session. They are listed only for this id."""
    return f"subagents of {session_id}"


class SessionInfo(Struct, frozen=True):
    """A session without its entries. Times are Unix times; `title` and `last_prompt` are prompts on one line."""

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
    """An entry that a search found. `excerpt` is the line with the words, `title` that of the session."""

    session_id: str
    entry_id: str
    kind: str
    excerpt: str
    time: float
    title: str


class StoredEntries(Struct, frozen=True):
    """Entries that are on disk. `first_seq` is the number of the first one in its session, from 1."""

    entries: tuple[Entry, ...]
    first_seq: int


class AppendedEntries(Struct, frozen=True):
    """Entries with their ids. `committed` ends once they are on disk, or raises `StorageError`."""

    entries: tuple[Entry, ...]
    committed: Awaitable[StoredEntries]


class SessionLog(Protocol):
    """The log of one open session. Entries are stored in the order of the calls, those of a call in one transaction."""

    @property
    def session_id(self) -> str: ...

    def append(self, *bodies: Body, parent_id: str | None = NEWEST) -> AppendedEntries:
        """Queue entries with new ids, without waiting. The first one's parent is `parent_id`; they form a chain."""

    def is_wanted(self) -> bool:
        """Return True once another program has asked for the session. It must then be closed soon."""

    async def close(self) -> None:
        """Wait until all entries are stored, and release the session."""


@runtime_checkable
class SessionStore(Protocol):
    """Sessions by id. Every method raises `StorageError` when the store cannot be read or written."""

    is_lasting: bool  # the sessions outlive the program; if False, they leave nothing on disk

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
        """Create a session that begins with the entries of another session, which stays unchanged.

        With `at`, the last entry is the one with that id, on any branch. A shortened id must be unique; of several
        entries with the same id, the newest is used.
        """

    async def load(
        self, session_id: str, *, after: int = 0, user_id: str | None = None
    ) -> tuple[SessionInfo, list[Entry]]:
        """Load a session for reading, without its first `after` entries; with `user_id`, only one of that user."""

    async def holder(self, session_id: str) -> str | None:
        """Return the address of the program that has the session open ("" without an address); None if it is closed."""

    async def list(
        self, *, cwd: Path | None = None, limit: int = 50, user_id: str | None = None
    ) -> Sequence[SessionInfo]:
        """Return the sessions of a directory or user, newest first; subagents have a `user_id` of their own."""

    async def search(
        self, text: str, *, cwd: Path | None = None, limit: int = 20, user_id: str | None = None
    ) -> Sequence[SearchHit]:
        """Return the entries, newest first, in which every word of `text` begins some word.

        It searches prompts, answers, calls, results, summaries and notes; in a fork, only entries since the fork.
        Raises `StorageError` for a text without a letter or digit.
        """

    async def remove(self, session_id: str) -> None:
        """Move a session and its subagents to the trash; forks keep the shared entries. Fails while it is open."""

    async def restore(self, session_id: str) -> str:
        """Restore the session that was removed last, and return its id. Fails if the id is in use again."""

    async def redact(self, session_id: str, secrets: Sequence[str]) -> int:
        """Replace these texts with `[redacted]` in all entries, even subagents'; store and return the number of places.

        Entries that the session shares with other sessions, because one is a fork of the other, change in all of them.
        Everything in the trash changes, too. Fails while the session is open.
        """

    async def file_changes(self) -> Sequence[tuple[str, Entry]]:
        """Return the entries of all sessions that record changes to files, oldest first, each with its session's id."""

    async def rename(self, session_id: str, name: str) -> None:
        """Rename a session, even while it is open. Raises `StorageError` if there is no session with that id."""

    async def close(self) -> None: ...


@runtime_checkable
class ConversationStore(Protocol):
    """Stores whole conversations for a program, by the program's ids. Each method raises `StorageError`.

    The bytes are JSON in agentcli's own format; `readable_from` says if a version can be read.
    """

    async def load(self, conversation_id: str) -> bytes | None:
        """Return the conversation as last saved; None if there is none."""

    async def save(self, conversation_id: str, data: bytes) -> None:
        """Replace the conversation as a whole."""

    async def reset(self, conversation_id: str) -> None:
        """Forget the conversation; nothing happens if there is none."""


LOCK_TIMEOUT_S = 30.0
MAX_LOCKED = 500  # files, because each lock is a file


class Locks(Protocol):
    """Locks that keep two calls from changing the same file at the same time, in this process and in others."""

    def held(self, keys: tuple[str, ...], *, timeout_s: float) -> AbstractAsyncContextManager[None]:
        """Hold the locks of the sorted `keys` while the body runs. Raises `ToolError` after the timeout."""


RestoredHow = Literal["restored", "removed", "merged", "conflict", "kept"]


class RestoredFile(Struct, frozen=True):
    """The outcome of undoing changes to one file."""

    path: str  # absolute
    how: RestoredHow  # "kept": it stays as it is, because it is restored already, or else `why`
    why: str = ""


class Restoration(Protocol):
    """A plan to undo changes to files. `changes` are those that it makes itself, in the form for the log."""

    @property
    def files(self) -> Sequence[RestoredFile]: ...

    @property
    def changes(self) -> tuple[FileChange, ...]: ...

    async def carry_out(self) -> Sequence[RestoredFile]:
        """Undo the changes, and return the outcome for each file. It cannot be interrupted. Raises `ToolError`."""


class Checkpoints(Protocol):
    """Records and reverts the changes that one session's calls make to files. Each method raises `ToolError`."""

    async def begin(self, call_id: str, paths: Sequence[Path] | None) -> Any:
        """Record the files that a call may change (None: the whole workspace); return the mark for `end`."""

    def files_scanned(self) -> int:
        """Return the number of files that a running `begin` has looked at."""

    async def end(self, mark: Any) -> FilesChanged | None:
        """Return the changes of the call; None if there are none."""

    async def forget(self, mark: Any | None) -> None:
        """Forget a call whose changes are in the log; None means the calls that `interrupted` returned."""

    async def changes_in_progress(self) -> Sequence[FilesChanged]:
        """Return the changes of running calls, such as background jobs, apart from those already returned."""

    async def interrupted(self, logged: Mapping[str, float]) -> Sequence[FilesChanged]:
        """Return the changes by calls that ran when the program was killed, apart from changes that the log has.

        `logged` has the Unix times of the log's `FilesChanged` entries, by call id: models may use an id again later.
        """

    def content(self, id: str) -> bytes:
        """Return a recorded file's content, by the id in its `FileState`. Blocks. Raises `OSError` if it is gone."""

    async def restoration(self, changes: Sequence[FileChange]) -> Restoration:
        """Return a plan to take back changes, which are given oldest first."""

    async def aclose(self) -> None: ...


class GrantStore(Protocol):
    """The permission rules that the person has granted for good in this project. Methods raise `StorageError`."""

    def list(self) -> Sequence[str]:
        """Return the grants, oldest first."""

    def add(self, rule: str) -> None:
        """Add a grant; nothing changes if it is there already."""

    def remove(self, rule: str) -> None:
        """Remove a grant."""


StreamStatus = Literal["running", "complete", "failed"]


class StreamEvent(Struct, frozen=True):
    """An event of a stream; `data` is one JSON object in UTF-8."""

    id: int
    data: bytes


class StreamState(Struct, frozen=True):
    """The position of a stream. `last_id` is 0 while it has no event; `note` is a text that its writer stores."""

    status: StreamStatus
    last_id: int
    note: str = ""


class EventStore(Protocol):
    """Streams of events by id. Every method raises `StorageError` when the store cannot be read or written.

    The ids of a stream's events are integers from 1 that only grow, even after events were removed. Ids are returned,
    and events can be read, only once the events are stored.
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
        """Store all events or none, and return the last id of the stream.

        Their ids follow the stream's last id, or `after` if it is greater. `status` and `note`, unless None, are stored
        with them; a new stream is `running`. Unless `if_note` is None, it must equal the current note, which is "" for
        a new stream: otherwise nothing is stored and `StreamMoved` is raised.
        """

    async def read(
        self, stream_id: str, after: int = 0, count: int = 100, *, wait_s: float = 0.0
    ) -> Sequence[StreamEvent]:
        """Return the first `count` events after an id; if there are none, wait up to `wait_s` seconds for one."""

    async def has(self, stream_id: str, id: int) -> bool:
        """Return True if the event is stored, so that a reader can continue after it."""

    async def state(self, stream_id: str) -> StreamState | None:
        """Return the state of a stream; None if there is no such stream."""

    async def running(self) -> Sequence[str]:
        """Return the ids of streams that are `running`."""

    async def remove(self, stream_id: str) -> None:
        """Remove events, status and note for good. Later events have greater ids than the removed ones."""

    async def close(self) -> None: ...


TurnEventName = Literal[
    "UserPromptSubmit", "UserPromptExpansion", "Stop", "StopFailure", "SubagentStart", "SubagentStop"
]
CallEventName = Literal["PreToolUse", "PostToolUse", "PostToolUseFailure", "PermissionRequest", "PermissionDenied"]
SessionEventName = Literal["SessionStart", "SessionEnd", "Notification", "PreCompact", "PostCompact", "DirectoryAdded"]
EventName = Literal[TurnEventName, CallEventName, SessionEventName]
Decision = Literal["", "allow", "ask", "deny"]


class CallRecord(Struct, frozen=True, kw_only=True):
    """A call, for hooks. `id` comes from the model, `caller` is the agent's id, `mode` the permission mode."""

    id: str
    tool: str
    version: str
    caller: str
    mode: Mode


class TurnHooks(Protocol):
    """Called during a turn, one after the other. The turn waits for each call."""

    async def on_turn_end(self, turn: int, usage: Usage, model: str, provider: str) -> bool:
        """Called after each reply, before its calls; False ends the run. An exception makes it fail.

        Hooks call a round a turn, as other agents do: `turn` counts the requests since the prompt, from 1.
        """
        return True

    async def on_message(self, entry: Entry) -> None:
        """Called when a reply or a result is stored. An exception is only logged."""
        return

    async def on_error(self, text: str, is_retryable: bool) -> None:
        """Called when a turn fails. An exception is ignored."""
        return


class HookAnswer(Struct, frozen=True):
    """A hook's answer to a call that is about to run.

    "allow" permits a call that would ask, "ask" asks the person, "deny" denies it. No hook can allow calls that a deny
    rule covers, or catastrophic commands. `input` replaces the arguments, the model reads `context` after the result,
    and `stops` ends the turn.
    """

    decision: Decision = ""
    reason: str = ""
    input: dict[str, Any] | None = None
    context: str = ""
    stops: bool = False


class EventAnswer(HookAnswer, frozen=True):
    """The hooks' combined answer to an event. `notices` are for the person; `problem` describes a hook's failure."""

    notices: tuple[str, ...] = ()
    problem: str = ""

    @property
    def blocks(self) -> bool:
        return self.decision == "deny"


class EventHooks(Protocol):
    """Answers events of a session."""

    async def fire(self, event: EventName, *, agent_id: str = "main", **fields: Any) -> EventAnswer:
        """Return the answer to an event, such as `Stop`. The fields describe it, such as `call`. Never raises."""


class CallHooks(Protocol):
    """Called before and after every call of a tool, in the order of their list. The call waits for each."""

    async def before_call(self, record: CallRecord, input: dict[str, Any]) -> HookAnswer | None:
        """Return an answer, or None. `input` includes changes by earlier hooks. Raise `ToolError` to deny the call."""

    async def after_call(self, record: CallRecord, result: ToolResult) -> str | None:
        """Return text that the model reads after the result, or None. An exception ends the turn."""


class NoHooks(TurnHooks):
    """A base class; its hooks do nothing."""
