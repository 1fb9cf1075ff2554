"""The entries of a conversation's log.

A log only grows. `user`, `assistant`, `tool_result` and `compaction` reach the model; the other kinds record events of
the session. `conversation.py` derives the next request from all of them, and `schema.py` stores them.
"""

import time
from pathlib import Path
from typing import Any, Literal

import msgspec

from agentcli.llm.messages import Block, StopReason, Text, ToolResult, Usage
from agentcli.llm.provider import ToolSpec

FileKind = Literal["file", "folder", "link", "pipe"]


class FileState(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """The state of a path."""

    kind: FileKind
    mode: int  # permission bits
    content: str = ""  # a link's target, or a file's blob id in the checkpoints; "" if it is not stored there
    size: int = 0  # bytes

    @property
    def is_stored(self) -> bool:
        return self.kind != "file" or bool(self.content)


def is_same_state(state: FileState | None, other: FileState | None) -> bool:
    """Return True if two states are known to be equal: contents that are not stored may differ at the same size."""
    return state == other and (state is None or state.is_stored)


class FileChange(msgspec.Struct, frozen=True, array_like=True):
    """The states of one absolute path before and after; None: nothing existed. `path` has the form of `stored_path`."""

    path: str
    before: FileState | None
    after: FileState | None


class FilesChanged(msgspec.Struct, frozen=True, tag_field="kind", tag="files_changed", omit_defaults=True):
    """The changes that a call made to files; `left_out` names the paths that were not compared."""

    id: str
    changes: tuple[FileChange, ...]
    is_exact: bool = True  # False: changes that other programs made meanwhile are included
    left_out: tuple[str, ...] = ()


class FilesRestored(msgspec.Struct, frozen=True, tag_field="kind", tag="files_restored", omit_defaults=True):
    """The person undid entries. Undoing an earlier `FilesRestored` reapplies the changes that it undid."""

    takes_back: tuple[str, ...]  # the ids of these entries
    changes: tuple[FileChange, ...] = ()  # the effects on files
    left: tuple[str, ...] = ()  # paths that were not restored


# Bytes of a name that are not UTF-8 are lone surrogates in Python, which JSON cannot represent. In the log, code points
# from the end of a private-use plane replace them; no name is known to use those.
_REPLACEMENTS = {0xDC80 + n: 0x10FF80 + n for n in range(0x80)}
_SURROGATES = {replacement: surrogate for surrogate, replacement in _REPLACEMENTS.items()}


def stored_path(path: str) -> str:
    """Return a path in its form for the log."""
    return path.translate(_REPLACEMENTS)


def system_path(stored: str) -> str:
    """Return a path of the log in its form for the operating system."""
    return stored.translate(_SURROGATES)


SCHEMA_VERSION = 3  # of the stored form; schema.py reads older ones
FILE = "SKILL.md"

Source = Literal["project", "user", "plugin", "bundled", "library"]
CompactionStrategy = Literal["truncate", "extract", "summarize"]
STRATEGY_NAMES = {
    "truncate": "long entries cut",
    "extract": "old turns summarized without the model",
    "summarize": "summary of old turns",
}
CompactionTrigger = Literal["auto", "manual", "overflow"]
# Older logs have "server", for the requests of MCP servers to the model, which are no longer possible.
PaidReason = Literal["aside", "refused", "summary", "broken", "subagent", "server"]


class User(msgspec.Struct, frozen=True, tag_field="kind", tag="user", omit_defaults=True):
    """A message from the person, or a system reminder from agentcli to the model."""

    content: tuple[Block, ...]
    is_reminder: bool = False

    @property
    def text(self) -> str:
        return "".join(block.text for block in self.content if isinstance(block, Text))


class Assistant(msgspec.Struct, frozen=True, tag_field="kind", tag="assistant", omit_defaults=True, kw_only=True):
    """One reply, after `retries` failed requests. `cost_usd` is None if the model's price is not known."""

    content: tuple[Block, ...]
    provider: str
    model: str
    usage: Usage = Usage()
    stop_reason: StopReason = "end_turn"
    cost_usd: float | None = None
    duration_ms: int = 0
    retries: int = 0
    prefix: str = ""  # hashes of the tools and the system text
    is_estimated: bool = False  # `usage` is an estimate, because the reply broke off
    first_token_ms: int | None = None  # until the first text, thinking or call; a part of `duration_ms`


class Result(msgspec.Struct, frozen=True, tag_field="kind", tag="tool_result", omit_defaults=True, kw_only=True):
    """The result of a call. `structured` is for programs, `summary` is one line for the person."""

    result: ToolResult
    name: str
    summary: str = ""
    duration_ms: float = 0.0
    structured: Any = None
    error_kind: str = ""
    retry_count: int = 0
    last_error: str = ""
    tool_version: str = "1"
    caller: str = "main"  # the id of the agent that made the call
    mode: str = ""  # the permission mode that decided on it
    answer: str = ""  # the person's answer, if the call asked
    error_code: str = ""  # more precise than `error_kind`
    output_level: str = ""


class Compaction(msgspec.Struct, frozen=True, tag_field="kind", tag="compaction", omit_defaults=True, kw_only=True):
    """Replaces older entries of the path in every later request; they stay in the log."""

    carried: str = ""  # the text with which later requests begin
    covers: tuple[str, str] = ("", "")  # the ids of the first and the last entry that it replaces
    first_kept: str = ""  # the id of the entry after the text; empty if no entry is kept
    stubs: dict[str, str] = {}  # by the id of a kept entry: the text that replaces its content
    strategy: CompactionStrategy = "summarize"
    trigger: CompactionTrigger = "auto"
    tokens_before: int = 0
    tokens_after: int = 0
    model: str = ""
    usage: Usage = Usage()
    cost_usd: float | None = 0.0


class ContextNote(msgspec.Struct, frozen=True, tag_field="kind", tag="context_note"):
    """A note for the person, which the model does not see."""

    text: str


class Pinned(msgspec.Struct, frozen=True, tag_field="kind", tag="pinned", omit_defaults=True):
    """A fact that every compaction carries word for word; with `is_removed`, it is no longer carried."""

    text: str
    is_removed: bool = False


class Rewound(msgspec.Struct, frozen=True, tag_field="kind", tag="rewound"):
    """The person went back to a prompt: the conversation continues from the entry that precedes `before`."""

    before: str


class HeadMoved(msgspec.Struct, frozen=True, tag_field="kind", tag="head_moved"):
    """The conversation continues from the entry whose id is `to`, on this branch or another one."""

    to: str


class Labelled(msgspec.Struct, frozen=True, tag_field="kind", tag="labelled"):
    """The person gave this point of the conversation a name. Only logs of earlier versions have such entries."""

    name: str


class Retracted(msgspec.Struct, frozen=True, tag_field="kind", tag="retracted"):
    """The ids of entries that were retracted, such as a prompt that no model could answer. Later entries stay."""

    ids: tuple[str, ...]


SwitchReason = Literal["chosen", "fallback", "budget"]  # "budget" is in logs of earlier versions


class ProviderSwitch(msgspec.Struct, frozen=True, tag_field="kind", tag="provider_switched", omit_defaults=True):
    """Another model (`provider/model`) answers from this entry on: it was chosen, or the model `before` failed."""

    before: str
    after: str
    reason: SwitchReason = "chosen"


class Queued(msgspec.Struct, frozen=True, tag_field="kind", tag="queue", omit_defaults=True):
    """All waiting messages. Each change of the queue is stored as a whole queue."""

    steering: tuple[tuple[Block, ...], ...] = ()
    follow_ups: tuple[tuple[Block, ...], ...] = ()


class Paid(msgspec.Struct, frozen=True, tag_field="kind", tag="paid", omit_defaults=True, kw_only=True):
    """A request that was paid for but has no reply in this log."""

    model: str
    usage: Usage = Usage()
    cost_usd: float | None = None
    reason: PaidReason = "aside"
    note: str = ""
    duration_ms: int = 0


class CallsStarted(msgspec.Struct, frozen=True, tag_field="kind", tag="calls_started"):
    """These calls were about to run when their reply was stored."""

    ids: tuple[str, ...]


class CallAsked(msgspec.Struct, frozen=True, tag_field="kind", tag="call_asked", omit_defaults=True):
    """A call waits for the person's answer; `rules` are the grants that were offered."""

    id: str
    title: str
    reason: str
    rules: tuple[str, ...] = ()


class CallAllowed(msgspec.Struct, frozen=True, tag_field="kind", tag="call_allowed"):
    """The person, or the permissions of that time, allowed a call. An `input` replaces the call's arguments."""

    id: str
    input: dict[str, Any] | None = None


class CallDenied(msgspec.Struct, frozen=True, tag_field="kind", tag="call_denied"):
    """The person denied a call, with this comment."""

    id: str
    why: str


class CallTried(msgspec.Struct, frozen=True, tag_field="kind", tag="call_tried"):
    """A call runs as a dry run: its changes reach the workspace only after a `CallAllowed`."""

    id: str


class CallKept(msgspec.Struct, frozen=True, tag_field="kind", tag="call_kept"):
    """The changes with these names, from a call's dry run, were applied to the workspace."""

    id: str
    names: tuple[str, ...]


class PlanAccepted(msgspec.Struct, frozen=True, tag_field="kind", tag="plan_accepted"):
    """The person accepted this plan, perhaps after editing it."""

    text: str


class SkillFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A skill's SKILL.md: its folder and `digest`, its own description, and the permission rules that it grants."""

    name: str
    description: str
    folder: str
    source: Source
    digest: str = ""
    argument_hint: str = ""
    allowed_tools: tuple[str, ...] = ()

    @property
    def file(self) -> Path:
        return Path(self.folder) / FILE


class SkillRecord(SkillFile, frozen=True, omit_defaults=True, kw_only=True):
    """The fields of a skill that the log keeps; `extensions/skills/skill.py` describes them."""

    tools: tuple[str, ...] | None = None
    model: str = ""
    effort: str = ""
    for_model: bool = True
    for_person: bool = True
    may_nest: bool = True
    takes_words: bool = False
    arguments: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    plugin_root: str = ""  # the folder of the plugin that contains it


class SkillActivated(msgspec.Struct, frozen=True, tag_field="kind", tag="skill_activated", omit_defaults=True):
    """A skill is active until the turn ends or, if activated `by` the person, they end it. Its reminder follows."""

    id: str
    skill: SkillRecord
    by: Literal["person", "model"] = "person"


class SkillEnded(msgspec.Struct, frozen=True, tag_field="kind", tag="skill_ended"):
    """The skill that was activated under this id is no longer active."""

    id: str


class CallsHandedOver(msgspec.Struct, frozen=True, tag_field="kind", tag="calls_handed_over", omit_defaults=True):
    """The client was asked to run these calls; `tools` are all tools that it offered."""

    ids: tuple[str, ...]
    tools: tuple[ToolSpec, ...] = ()


class ResetAwaited(msgspec.Struct, frozen=True, tag_field="kind", tag="reset_awaited"):
    """The turn waits for a usage limit to reset at `until` (seconds since 1970); 0 ends the wait."""

    until: float


class Unreadable(msgspec.Struct, frozen=True, tag_field="kind", tag="unreadable"):
    """Replaces a stored entry that is damaged or from a newer version, and keeps its text. It is never stored."""

    error: str
    stored: str = ""


MessageBody = User | Assistant | Result | Compaction  # what reaches the model
CallBody = CallsStarted | CallAsked | CallAllowed | CallDenied | CallTried | CallKept | CallsHandedOver
PathBody = Rewound | HeadMoved | Labelled | Retracted
SessionBody = ContextNote | Pinned | PlanAccepted | ProviderSwitch | Queued | Paid | ResetAwaited
SkillBody = SkillActivated | SkillEnded
Body = MessageBody | CallBody | PathBody | SessionBody | SkillBody | FilesChanged | FilesRestored | Unreadable


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry. `time` is in seconds since 1970. A result has the id of its call; all other ids are UUIDv7."""

    id: str
    parent_id: str | None
    time: float
    body: Body
    schema_version: int = SCHEMA_VERSION

    @property
    def is_prompt(self) -> bool:
        return isinstance(self.body, User) and not self.body.is_reminder


ADDED_FOLDER = "The user added the folder"  # the beginning of the reminder about it


def reminder(text: str) -> User:
    """Return a system reminder. It is a message of the user, because only those can be appended."""
    return User((Text(f"<system-reminder>{text}</system-reminder>"),), is_reminder=True)


def without_reminder_tags(text: str) -> str:
    return text.removeprefix("<system-reminder>").removesuffix("</system-reminder>")


def entry_now(id: str, parent_id: str | None, body: Body) -> Entry:
    return Entry(id, parent_id, time.time(), body)
