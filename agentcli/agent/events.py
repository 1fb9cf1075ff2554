"""Everything a front end is told (events), and everything it can ask for (ops).

`turn` counts the requests of one prompt, from 1: the field's name for what is a round elsewhere in this program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

from agentcli.agent.permissions.modes import Mode
from agentcli.conversation.entries import CompactionStrategy, CompactionTrigger, Entry
from agentcli.llm.messages import Block, Image, StopReason, Text, ToolResult, ToolUse, Usage
from agentcli.llm.provider import Effort, ToolSpec
from agentcli.tools.trial import TriedChange

DoneReason = Literal["end_turn", "max_tokens", "max_turns", "max_budget", "interrupted", "declined", "stopped"]


class CallError(Struct, frozen=True):
    """Why a call failed, in one form for all tools. The message says what to do instead."""

    kind: str
    code: str
    message: str
    call_id: str
    is_retryable: bool = False


class AgentEvent(Struct, frozen=True, kw_only=True):
    """An event; `agent_id` says which agent it comes from: `main`, or a subagent."""

    agent_id: str = "main"


class TurnStarted(AgentEvent, frozen=True, tag="turn_started"):
    turn: int


class TurnEnded(AgentEvent, frozen=True, tag="turn_ended"):
    """A reply is complete and stored; its calls come next."""

    turn: int
    stop_reason: StopReason
    model: str
    provider: str


class ReplyStarted(AgentEvent, frozen=True, tag="reply_started"):
    """The model has begun to answer a request."""

    model: str
    provider: str


BlockKind = Literal["text", "thinking", "tool_use"]


class BlockStarted(AgentEvent, frozen=True, tag="block_started"):
    """A block of the reply begins; `index` counts the reply's blocks from 0, `id` and `name` are a call's."""

    index: int
    kind: BlockKind
    id: str = ""
    name: str = ""


class BlockEnded(AgentEvent, frozen=True, tag="block_ended"):
    index: int


class InputDelta(AgentEvent, frozen=True, tag="input_delta"):
    """A part of a call's arguments, as JSON text, while the model writes them; `index` is the block's."""

    id: str
    partial_json: str
    index: int


class TextDelta(AgentEvent, frozen=True, tag="text_delta"):
    text: str


class ThinkingDelta(AgentEvent, frozen=True, tag="thinking_delta"):
    text: str


class ToolStarted(AgentEvent, frozen=True, tag="tool_started"):
    """`title` is one line for the person."""

    id: str
    name: str
    input: dict[str, Any]
    title: str


class OutputDelta(AgentEvent, frozen=True, tag="output_delta"):
    """Output of a call that is still running."""

    id: str
    text: str


class ToolFinished(AgentEvent, frozen=True, tag="tool_finished"):
    """`structured` of a list or search over 1 MB is `{"omitted": …}`; the content, and its data file, tell it.

    `answer` is what the person said where the call asked: `allowed for the session`, `1 of 2 hunks`, `declined`.
    """

    id: str
    name: str
    result: ToolResult
    duration_ms: float
    summary: str = ""
    structured: Any = None
    error_kind: str = ""
    error: CallError | None = None
    retry_count: int = 0
    last_error: str = ""
    answer: str = ""


class ClientToolRequested(AgentEvent, frozen=True, tag="client_tool_requested"):
    """Calls the client has to run; the turn waits for a `ClientResult` for each of them."""

    calls: tuple[ToolUse, ...]


class Steered(AgentEvent, frozen=True, tag="steered"):
    """A message reached the model early; these calls were not started for it."""

    skipped: tuple[ToolUse, ...]


class QueueChanged(AgentEvent, frozen=True, tag="queue_changed"):
    """What waits to be said: `steering` goes to the model with its next request, `follow_ups` after the turn."""

    steering: tuple[tuple[Block, ...], ...]
    follow_ups: tuple[tuple[Block, ...], ...]


class ModeChanged(AgentEvent, frozen=True, tag="mode_changed"):
    mode: Mode


class ProviderSwitched(AgentEvent, frozen=True, tag="provider_switched"):
    """Names as `provider/model`."""

    before: str
    after: str


class Retry(AgentEvent, frozen=True, tag="retry"):
    """A request failed and is tried again. `number` counts from 1."""

    number: int
    delay_s: float
    error: str


class ApprovalRequested(AgentEvent, frozen=True, tag="approval_requested"):
    """A call waits for `Approve` with this id. `preview` is the exact command, or the diff it would make.

    `rules` are grants that would let this call through, narrowest first; `mode` is a permission mode that would, too.
    `hunks` are the parts of the diff that can be made one by one, each as unified diff text; empty where the call is
    made as a whole. `effects` say what the call would do, `grave` those of them that delete, reach the network from a
    command, or leave the sandbox. With `can_try` the answer may be to try it first.

    A request of the kind `keep` asks what stays of the `changes` that a command made on a stand-in of the workspace;
    its `hunks` are these changes, one by one.

    At the limit of rounds the call has no name: the question is whether the turn goes on.
    """

    id: str
    call: ToolUse
    title: str
    reason: str
    preview: str
    rules: tuple[str, ...] = ()
    hunks: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()
    can_try: bool = False
    grave: tuple[str, ...] = ()
    mode: str = ""
    kind: Literal["run", "keep"] = "run"
    changes: tuple[TriedChange, ...] = ()


class ApprovalSettled(AgentEvent, frozen=True, tag="approval_settled"):
    """A question is open no more though nobody answered it: the mode was switched, or another call was declined."""

    id: str


class Compaction(AgentEvent, frozen=True, tag="compaction"):
    """Requests hold less of the conversation from now on. Tokens are those of a whole request."""

    tokens_before: int
    tokens_after: int
    strategy: CompactionStrategy = "summarize"
    trigger: CompactionTrigger = "auto"
    cost_usd: float | None = 0.0


class UsageReported(AgentEvent, frozen=True, tag="usage"):
    """Of one reply, and the session's total cost so far (None where a price is unknown)."""

    usage: Usage
    cost_usd: float | None
    total_cost_usd: float | None
    model: str
    provider: str


class EntryStored(AgentEvent, frozen=True, tag="entry_stored"):
    """An entry is on disk. `seq` counts the entries of the session."""

    entry: Entry
    seq: int


class Notice(AgentEvent, frozen=True, tag="notice"):
    """Something the person should know that ends nothing."""

    text: str


class Denial(Struct, frozen=True):
    """A call that was denied without a person's no, or one that ran and whose changes were dropped."""

    call: ToolUse
    kind: Literal["denied", "dropped"] = "denied"


class Done(AgentEvent, frozen=True, tag="done"):
    """The answer to a prompt is complete. `turns` counts its requests."""

    text: str
    turns: int
    usage: Usage
    reason: DoneReason = "end_turn"
    cost_usd: float | None = None
    denials: tuple[Denial, ...] = ()


class TurnFailed(AgentEvent, frozen=True, tag="turn_failed"):
    """The prompt could not be answered; what had been said is kept. `error_type` is the error's class.

    With `broke_off` an answer had begun, and `GoOn` goes on where it stopped.
    """

    error: str
    is_retryable: bool
    error_type: str = ""
    turns: int = 0
    usage: Usage = Usage()
    cost_usd: float | None = None
    denials: tuple[Denial, ...] = ()
    broke_off: bool = False


Event = (
    TurnStarted
    | TurnEnded
    | ReplyStarted
    | BlockStarted
    | TextDelta
    | ThinkingDelta
    | InputDelta
    | BlockEnded
    | ToolStarted
    | OutputDelta
    | ToolFinished
    | ClientToolRequested
    | Steered
    | QueueChanged
    | ModeChanged
    | ProviderSwitched
    | Retry
    | ApprovalRequested
    | ApprovalSettled
    | Compaction
    | UsageReported
    | EntryStored
    | Notice
    | Done
    | TurnFailed
)

Emit = Callable[[Event], None]  # synchronous and never waits


class Prompt(Struct, frozen=True, tag="prompt"):
    """Start a turn; while one runs, wait for its end. `model` answers this turn only, where it starts at once.

    `tools` are the client's own: from the next turn on the model has them, for as long as the session is open, and
    their calls come as `ClientToolRequested`. A name that another tool has is refused, with the prompt.
    """

    content: tuple[Block, ...]
    model: str = ""
    tools: tuple[ToolSpec, ...] = ()


class Steer(Struct, frozen=True, tag="steer"):
    """Reach the model before its next request; calls not yet started are skipped. Without a turn it is a prompt."""

    content: tuple[Block, ...]


class TakeBack(Struct, frozen=True, tag="take_back"):
    """Remove a message that waits: the one at `position` (steering first, from 0), else the newest, a follow-up first.

    Nothing happens when there is none.
    """

    position: int | None = None


class RunQueued(Struct, frozen=True, tag="run_queued"):
    """Start a turn with the first message that waits; nothing happens while one runs."""


class GoOn(Struct, frozen=True, tag="go_on"):
    """Go on with an answer that broke off, where it stopped; nothing happens where the conversation ends otherwise."""


class Interrupt(Struct, frozen=True, tag="interrupt"):
    """End the turn and the person's own commands now; what was said is kept.

    Follow-ups stay queued. Steering that had not reached the model yet starts a turn of its own.
    """


class Approve(Struct, frozen=True, tag="approve"):
    """Answer an `ApprovalRequested`; a comment goes to the model.

    `scope` "session" also allows what `rule` covers (empty: the narrowest one offered), "always" in later sessions of
    the project too; "try" runs it on a stand-in of the workspace first. With `mode` a yes for the session switches to
    that permission mode in place of a rule. `hunks` names those of the request's hunks that are made; None means all,
    none means no. A no that `stops` ends the turn, which waits for the person.
    """

    id: str
    allowed: bool
    scope: Literal["once", "session", "always", "try"] = "once"
    comment: str = ""
    rule: str = ""
    hunks: tuple[int, ...] | None = None
    mode: str = ""
    stops: bool = False


class SetModel(Struct, frozen=True, tag="set_model"):
    """Use another model from the next request on: `provider/model`."""

    name: str


class SetMode(Struct, frozen=True, tag="set_mode"):
    """Judge calls by another permission mode from the next call on."""

    mode: str


class SetAttended(Struct, frozen=True, tag="set_attended"):
    """Say whether somebody answers questions and runs client tools.

    Without anybody open questions are refused, later ones denied, and calls of client tools end with an error.
    """

    is_attended: bool


class SetEffort(Struct, frozen=True, tag="set_effort"):
    """How hard the model thinks from the next request on; None means as the settings say."""

    effort: Effort | None


class Background(Struct, frozen=True, tag="background"):
    """Let the commands that run now go on as background jobs; their calls end with the output so far."""


class RunCommand(Struct, frozen=True, tag="run_command"):
    """Run the person's own shell command at once, also while a turn runs; nobody is asked, and nothing confines it.

    With `to_model` the command and its output become part of the conversation.
    """

    command: str
    to_model: bool = True


class CommandRan(Struct, frozen=True, tag="command_ran"):
    """Keep the person's own command that the front end ran in a terminal (`own_command.run_in_terminal`).

    `output` is all or most of what it said, as text, and how it ended.
    """

    command: str
    output: str
    to_model: bool = True


class ClientResult(Struct, frozen=True, tag="client_result"):
    """What came of a call that the client ran."""

    id: str
    content: str | tuple[Text | Image, ...]
    is_error: bool = False
    structured: Any = None


Op = (
    Prompt
    | Steer
    | TakeBack
    | RunQueued
    | GoOn
    | Interrupt
    | Approve
    | SetModel
    | SetMode
    | SetAttended
    | SetEffort
    | Background
    | RunCommand
    | CommandRan
    | ClientResult
)
