"""Defines events: everything that a session sends to its front ends.

`turn` is the number of a request for the same prompt, from 1. Other protocols call it so; our code calls it a round.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from msgspec import Struct

from agentcli.agent.permissions.modes import Mode
from agentcli.conversation.entries import CompactionStrategy, CompactionTrigger, Entry, SwitchReason
from agentcli.conversation.evidence import Claim
from agentcli.llm.messages import Block, StopReason, ToolResult, ToolUse, Usage
from agentcli.tools.command import ChangeSummary, DryRunAccess

if TYPE_CHECKING:  # before Python 3.13 only type checkers know type variables with a default
    import typing_extensions

    Output = typing_extensions.TypeVar("Output", default=Any)
else:
    Output = TypeVar("Output")

BlockKind = Literal["text", "thinking", "tool_use"]
SubagentEnd = Literal["done", "stopped", "failed", "limit"]
DoneReason = Literal[
    "end_turn", "max_tokens", "max_turns", "max_budget", "interrupted", "declined", "stopped", "paused"
]


class CallError(Struct, frozen=True):
    """The failure of a call, in one form for all tools. The message includes what to do instead."""

    kind: str
    code: str
    message: str
    call_id: str
    is_retryable: bool = False


class AgentEvent(Struct, frozen=True, kw_only=True):
    """An event of the agent `agent_id`, which is `main` or the id of a subagent."""

    agent_id: str = "main"


class TurnStarted(AgentEvent, frozen=True, tag="turn_started"):
    turn: int


class TurnEnded(AgentEvent, frozen=True, tag="turn_ended"):
    """A round's reply is stored; its calls come next."""

    turn: int
    stop_reason: StopReason
    model: str
    provider: str


class PromptProgress(AgentEvent, frozen=True, tag="prompt_progress"):
    """A local model has read `tokens_read` of the prompt's `tokens`."""

    tokens_read: int
    tokens: int


class ReplyStarted(AgentEvent, frozen=True, tag="reply_started"):
    """The model has begun to answer a request."""

    model: str
    provider: str


class BlockStarted(AgentEvent, frozen=True, tag="block_started"):
    """A block of the reply begins. `index` counts the reply's blocks from 0; `id` and `name` are those of a call."""

    index: int
    kind: BlockKind
    id: str = ""
    name: str = ""


class BlockEnded(AgentEvent, frozen=True, tag="block_ended"):
    index: int


class InputDelta(AgentEvent, frozen=True, tag="input_delta"):
    """A part of a call's arguments, as JSON text, while the model writes them; `index` is that of the block."""

    id: str
    partial_json: str
    index: int


class TextDelta(AgentEvent, frozen=True, tag="text_delta"):
    text: str


class ThinkingDelta(AgentEvent, frozen=True, tag="thinking_delta"):
    text: str


class ToolStarted(AgentEvent, frozen=True, tag="tool_started"):
    """A call starts. `title` describes it to the person in one line."""

    id: str
    name: str
    input: dict[str, Any]
    title: str


class OutputDelta(AgentEvent, frozen=True, tag="output_delta"):
    """Output of a call that is still running."""

    id: str
    text: str


class ToolFinished(AgentEvent, frozen=True, tag="tool_finished"):
    """A call has ended. A `structured` list or search over 1 MB is `{"omitted": …}`; a data file has all of it.

    `answer` describes the person's answer, such as `allowed for this session`, `1 of 2 hunks` or `declined`.
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
    """Calls for the client to run. The turn waits for a `ClientResult` for each of them."""

    calls: tuple[ToolUse, ...]


class Steered(AgentEvent, frozen=True, tag="steered"):
    """The person's message goes to the model during the turn, so these calls were skipped."""

    skipped: tuple[ToolUse, ...]


class QueueChanged(AgentEvent, frozen=True, tag="queue_changed"):
    """The waiting messages: `steering` goes to the model with its next request, `follow_ups` after the turn."""

    steering: tuple[tuple[Block, ...], ...]
    follow_ups: tuple[tuple[Block, ...], ...]


class ModeChanged(AgentEvent, frozen=True, tag="mode_changed"):
    mode: Mode


class ProviderSwitched(AgentEvent, frozen=True, tag="provider_switched"):
    """Another model answers from now on (`provider/model`). The `reason` is `chosen` if a person or program did so."""

    before: str
    after: str
    reason: SwitchReason = "chosen"


class Retry(AgentEvent, frozen=True, tag="retry"):
    """A request failed. This is retry `number` of `max_number` (0: unknown), after which `fallback` answers, if set."""

    number: int
    delay_s: float
    error: str
    max_number: int = 0
    fallback: str = ""


class QuestionEvent(AgentEvent, frozen=True):
    """A question that waits for an `Approve` with its `id`. `title` describes it in one line.

    Fields of other kinds of question are empty here.
    """

    id: str
    title: str
    kind: ClassVar[Literal["run", "keep", "ask", "plan"]] = "run"

    @property
    def call(self) -> ToolUse:
        """The call that the question is about; a call without a name if it is about the turn."""
        return ToolUse(self.id, "", {})

    def __getattr__(self, name: str) -> Any:
        if name in _EMPTY:
            return _EMPTY[name]
        raise AttributeError(f"{type(self).__name__} has no field {name!r}.")


_EMPTY: dict[str, Any] = dict.fromkeys(("reason", "preview", "mode", "output", "opens"), "")  # values of missing fields
_EMPTY |= dict.fromkeys(("rules", "hunks", "effects", "grave", "changes", "options"), ())
_EMPTY |= dict.fromkeys(("can_try", "has_failed"), False)


class CallApproval(QuestionEvent, frozen=True, kw_only=True, tag="call_approval"):
    """Asks if a call may run. `preview` shows the whole call, and `effects` describe what it would do.

    `rules` would allow the call, narrowest first. `grave` are the effects that the person must not overlook: deleting,
    reaching the network from a command, or leaving the sandbox.
    """

    call: ToolUse
    reason: str
    preview: str
    rules: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()
    grave: tuple[str, ...] = ()


class CommandApproval(CallApproval, frozen=True, kw_only=True, tag="command_approval"):
    """Asks to run the command in `preview` (or, if `can_try`, dry-run it), or to repeat a dry run that `opens` more."""

    can_try: bool = False
    opens: DryRunAccess = ""  # the dry run had no access to it; a yes makes the dry run again with access


class EditApproval(CallApproval, frozen=True, kw_only=True, tag="edit_approval"):
    """Asks if an edit may be made. `preview` is the diff; `mode` is a permission mode that would allow it, or empty.

    `hunks` are the parts of the diff that can be applied separately, each as unified diff text.
    """

    hunks: tuple[str, ...] = ()
    mode: str = ""


class ChangesApproval(QuestionEvent, frozen=True, kw_only=True, tag="changes_approval"):
    """Asks which `changes` of a dry run to apply. `hunks` has the hunks of all changes in a row.

    `output` is the end of the command's output. `has_failed`: it failed, was killed, timed out or lacked hosts.
    """

    kind = "keep"
    call: ToolUse
    reason: str
    preview: str
    rules: tuple[str, ...] = ()
    hunks: tuple[str, ...] = ()
    changes: tuple[ChangeSummary, ...] = ()
    output: str = ""
    has_failed: bool = False


class Question(QuestionEvent, frozen=True, kw_only=True, tag="question"):
    """The model's question, in `title`, with `options` to choose from. The comment of a yes is the answer."""

    kind = "ask"
    call: ToolUse
    options: tuple[str, ...] = ()


class PlanApproval(QuestionEvent, frozen=True, kw_only=True, tag="plan_approval"):
    """Asks about the plan in `preview`. A yes may name a mode other than `next_mode`; its comment replaces the plan."""

    kind = "plan"
    preview: str
    next_mode: Mode


class LimitQuestion(QuestionEvent, frozen=True, kw_only=True, tag="limit_question"):
    """Asks if the turn may continue beyond a limit, or repeat a call again."""

    reason: str


AnyQuestion = CallApproval | CommandApproval | EditApproval | ChangesApproval | Question | PlanApproval | LimitQuestion


class ApprovalSettled(AgentEvent, frozen=True, tag="approval_settled"):
    """A question is closed: it was answered, the mode was switched, or another call was declined."""

    id: str


class Compaction(AgentEvent, frozen=True, tag="compaction"):
    """The conversation was compacted. Both numbers of tokens are those of a whole request."""

    tokens_before: int
    tokens_after: int
    strategy: CompactionStrategy = "summarize"
    trigger: CompactionTrigger = "auto"
    cost_usd: float | None = 0.0


class UsageReported(AgentEvent, frozen=True, tag="usage"):
    """The usage and cost of one reply, and the session's total cost so far (None if a price is unknown)."""

    usage: Usage
    cost_usd: float | None
    total_cost_usd: float | None
    model: str
    provider: str


class EntryStored(AgentEvent, frozen=True, tag="entry_stored"):
    """An entry is on disk. `seq` is its number in the session, from 1."""

    entry: Entry
    seq: int


class Notice(AgentEvent, frozen=True, tag="notice"):
    """A line for the person that is not part of the conversation."""

    text: str


class TakenOver(AgentEvent, frozen=True, tag="taken_over"):
    """Another program takes over the session, so this one must close it. A notice precedes it."""


class HookRan(AgentEvent, frozen=True, tag="hook_ran"):
    """A hook's command has run for an event. `subject` may be a tool; `decision` is empty if it made none."""

    event: str
    command: str
    subject: str
    decision: str
    reason: str
    problem: str
    duration_ms: int


class SubagentStarted(AgentEvent, frozen=True, tag="subagent_started"):
    """A subagent begins. `id` is the `agent_id` of its events, `call_id` the call that created it."""

    id: str
    call_id: str
    agent: str
    task: str
    session_id: str
    model: str


class SubagentEnded(AgentEvent, frozen=True, tag="subagent_ended"):
    """A subagent has ended. Usage and cost include all its requests; the cost is None if a price is unknown."""

    id: str
    call_id: str
    end: SubagentEnd
    turns: int
    usage: Usage
    cost_usd: float | None
    text: str


class Denial(Struct, frozen=True):
    """A call denied (by the person or not), or a dry run whose changes were discarded unasked ("dropped")."""

    call: ToolUse
    kind: Literal["denied", "dropped"] = "denied"


class Done(AgentEvent, Generic[Output], frozen=True, tag="done"):
    """The turn has ended, or waits for results of the `pending` calls. `claims` are checked, `output` is typed."""

    text: str
    turns: int
    usage: Usage
    reason: DoneReason = "end_turn"
    cost_usd: float | None = None
    denials: tuple[Denial, ...] = ()
    claims: tuple[Claim, ...] = ()
    pending: tuple[ToolUse, ...] = ()
    output: Output = None  # type: ignore[assignment]  # None for an agent without an output type


class TurnFailed(AgentEvent, frozen=True, tag="turn_failed"):
    """The turn has failed; the text so far is kept. If the answer `broke_off`, it can be resumed."""

    error: str
    is_retryable: bool
    error_type: str = ""
    turns: int = 0
    usage: Usage = Usage()
    cost_usd: float | None = None
    denials: tuple[Denial, ...] = ()
    broke_off: bool = False


RequestEvent = TurnStarted | TurnEnded | PromptProgress | ReplyStarted | UsageReported | Retry | ProviderSwitched
ReplyEvent = BlockStarted | TextDelta | ThinkingDelta | InputDelta | BlockEnded
CallEvent = ToolStarted | OutputDelta | ToolFinished | ClientToolRequested | HookRan | SubagentStarted | SubagentEnded
SessionEvent = QueueChanged | Steered | ModeChanged | ApprovalSettled | Compaction | EntryStored | Notice | TakenOver
Event = RequestEvent | ReplyEvent | CallEvent | SessionEvent | AnyQuestion | Done | TurnFailed

Emit = Callable[[Event], None]  # synchronous and never waits
