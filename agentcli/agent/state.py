"""The state of a session, which can be rebuilt from its log, and the prompts that it can be rewound to."""

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from agentcli.agent.accounting import Account, Amounts, Budgets, UsageCollector, paid_request
from agentcli.agent.permissions.modes import Mode
from agentcli.agent.permissions.rules import Rules
from agentcli.conversation import entries as log
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.mentions import typed_text
from agentcli.llm.provider import Effort
from agentcli.tools.builtin.toolset import TodoItem
from agentcli.tools.workspace import Workspace

# The system text never changes, so reminders tell the model when plan mode begins and ends.
PLAN_ON = log.reminder(
    "Plan mode is on: read only, change nothing. Once you know enough, end with your plan under a heading '# Plan'."
)
PLAN_OFF = log.reminder("Plan mode is off: you can make changes now.")


class ModelChoice(msgspec.Struct, kw_only=True):
    """The model of a session (`provider/model`), and facts about earlier requests that affect the next one."""

    name: str
    effort: Effort | None = None
    last_used: str = ""  # the model that sent the newest reply
    switch_reason: log.SwitchReason = "chosen"  # why the next request goes to another model; a resolver may set it
    is_small: bool = False
    window_share: float = 0.0  # the part of the window that the newest request filled, 0 to 1
    rejected: dict[str, frozenset[str]] = msgspec.field(default_factory=dict)  # by model: keys for `without`
    reported: set[str] = msgspec.field(default_factory=set)  # notices that were shown, so that each is shown once


class AgentState(msgspec.Struct, kw_only=True):
    """A session's conversation and its settings. `notes` are system reminders for its next request.

    `mode_before_plan` is the newest mode other than plan that the person chose or that a turn ran in.
    """

    model: ModelChoice
    mode: Mode = "default"
    mode_before_plan: Mode = "default"
    rules: Rules = msgspec.field(default_factory=Rules)
    conversation: Conversation = msgspec.field(default_factory=Conversation)
    meter: UsageCollector = msgspec.field(default_factory=UsageCollector)
    budgets: Budgets = msgspec.field(default_factory=lambda: Budgets((Account("session"),)))
    notes: deque[log.User] = msgspec.field(default_factory=deque)

    def __post_init__(self) -> None:
        self.remember_mode()

    def remember_mode(self) -> None:
        """Remember the current mode, unless it is plan mode, as the one to return to after plan mode."""
        if self.mode != "plan":
            self.mode_before_plan = self.mode

    def add_mode_note(self) -> None:
        """Add a reminder that plan mode is on or off, unless the newest such reminder for the model says the same."""
        known = [*(entry.body for entry in self.conversation.request_entries), *self.notes]
        newest = next((body for body in reversed(known) if body in (PLAN_ON, PLAN_OFF)), PLAN_OFF)
        due = PLAN_ON if self.mode == "plan" else PLAN_OFF
        if newest != due:
            self.notes.append(due)

    @property
    def awaits_reset(self) -> bool:
        return awaited_reset(self.conversation) > 0


def chosen_model(conversation: Conversation) -> str:
    """Return the model that the person chose in a stored conversation, not a substitute for it; empty for none."""
    chosen = substitute = ""  # `substitute` answers now in place of `chosen`, such as after a failure
    for entry in conversation.path:
        match entry.body:
            case log.ProviderSwitch(_, now, "chosen"):
                chosen, substitute = now, ""
            case log.ProviderSwitch(before, now):
                chosen, substitute = chosen or before, now
            case log.Assistant(provider=provider, model=model) if f"{provider}/{model}" != substitute:
                chosen, substitute = f"{provider}/{model}", ""
    return chosen


def awaited_reset(conversation: Conversation) -> float:
    """Return the Unix time of the usage limit's reset that the last turn waits for; 0 if it waits for none."""
    for entry in reversed(conversation.path):
        match entry.body:
            case log.ResetAwaited(until):
                return until
            case log.Assistant() | log.Result() | log.User(is_reminder=False):
                break  # the turn has continued since
    return 0.0


def restore_state(state: AgentState, entries: Iterable[log.Entry]) -> AgentState:
    """Set the conversation of `state`, its cost, and the model that answered last, from the entries of a log."""
    conversation = state.conversation = Conversation(entries)
    if (reply := conversation.last_reply) is not None and isinstance(reply.body, log.Assistant):
        state.model.last_used = f"{reply.body.provider}/{reply.body.model}"
    # The day's ledger has the cost of earlier runs already, so only the session is charged.
    session_budget = Budgets([account for account in state.budgets.accounts if account.scope == "session"])
    for entry in conversation.entries:  # also of other branches: entries that were taken back were paid for, too
        if cost := paid_request(entry.body):
            state.meter.add_request(*cost)
        session_budget.charge(_amounts_of(entry.body))
    return state


def _amounts_of(body: log.Body) -> Amounts:
    """Return the amounts that an entry charges to budgets; an unknown price charges no money."""
    match body:
        case log.Result():
            return {"calls": 1.0, "seconds": body.duration_ms / 1000}
        case log.Assistant() | log.Paid():
            tokens, seconds = body.usage.context_tokens, body.duration_ms / 1000
            return {"usd": body.cost_usd or 0.0, "tokens": tokens, "seconds": seconds}
        case _:
            return {}


def todo_items(path: Sequence[log.Entry]) -> tuple[TodoItem, ...]:
    """Return the items of the todo list that the model wrote last on the path."""
    for entry in reversed(path):
        body = entry.body
        if isinstance(body, log.Result) and body.name == "todo" and not body.result.is_error and body.structured:
            try:
                return msgspec.convert(body.structured["items"], tuple[TodoItem, ...])
            except (msgspec.ValidationError, TypeError, KeyError):
                return ()  # another version of agentcli wrote the list in a different format
    return ()


class SessionSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A session as a front end reads it. `cost_usd` is its cost so far; None where a price is unknown."""

    id: str
    model: str
    mode: Mode
    effort: Effort | None
    workspace: Workspace
    conversation: Conversation
    cost_usd: float | None
    max_budget_usd: float | None

    @property
    def context_tokens(self) -> int:
        """The tokens of the next request; before this run's first request, those of the newest request in the log."""
        if tokens := self.conversation.size.now():
            return tokens
        for entry in reversed(self.conversation.path):
            match entry.body:
                case log.Assistant(usage=usage):
                    return usage.context_tokens
                case log.Compaction(tokens_after=tokens):
                    return tokens
        return 0


def prompts(conversation: Conversation) -> list[tuple[str, str]]:
    """Return the person's prompts on the path, oldest first: each as its entry's id and the text as it was typed."""
    return [
        (entry.id, typed_text(entry.body.content))
        for entry in conversation.path
        if isinstance(entry.body, log.User) and not entry.body.is_reminder
    ]
