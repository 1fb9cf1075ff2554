"""The conversation of a session: its entries as a tree, and the messages of its next request."""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import dropwhile
from typing import Any, NamedTuple

from msgspec.structs import replace

from agentcli.conversation import entries as log
from agentcli.llm import messages as llm
from agentcli.llm import models
from agentcli.llm.prepared import PreparedMessages
from agentcli.llm.provider import ToolSpec

MAX_UNCERTAIN_SHARE = 0.1  # of the tokens added since the last count, from which the calibration then learns
MAX_OLD_ARGUMENT_CHARS = 100  # of each text in the arguments of a call that a compaction has shortened

Content = tuple[llm.Block, ...]


class Queue:
    """The waiting messages: `steering` for the next request, `follow_ups` each for a turn of its own."""

    def __init__(self, follow_ups: Iterable[Content] = ()) -> None:
        self.steering: deque[Content] = deque()
        self.follow_ups: deque[Content] = deque(follow_ups)

    def entry(self) -> log.Queued:
        """Return the whole queue as an entry, which is stored in one transaction with a message that leaves it."""
        return log.Queued(tuple(self.steering), tuple(self.follow_ups))

    def remove(self, position: int | None = None) -> bool:
        """Remove the message at a position (steering messages come first), or the newest; return False without one."""
        count = len(self.steering) + len(self.follow_ups)
        index = count - 1 if position is None else position
        if not 0 <= index < count:
            return False
        if index < len(self.steering):
            del self.steering[index]
        else:
            del self.follow_ups[index - len(self.steering)]
        return True

    def take_steering(self) -> list[Content]:
        messages, self.steering = list(self.steering), deque()
        return messages


class Conversation:
    """All entries of a session in the order in which they were stored, and the current branch."""

    def __init__(self, entries: Iterable[log.Entry] = ()) -> None:
        self.entries: list[log.Entry] = []
        self.path: list[log.Entry] = []  # from the root to the newest entry of the branch, without retracted ones
        self.open_calls: dict[str, llm.ToolUse] = {}  # calls of the path without a result, by id, oldest first
        self.unanswered: set[str] = set()  # ids of open calls about which the person was asked and has not answered yet
        self.dry_runs: set[str] = set()  # ids of open calls that ran as dry runs whose changes nobody has allowed yet
        self.pending_calls: dict[str, llm.ToolUse] = {}  # open calls that the client was asked to run, by id
        self.applied_changes: dict[str, tuple[str, ...]] = {}  # by open call: names of applied changes of its dry run
        self.last_reply: log.Entry | None = None
        self.size = RequestSize(self)
        self.prepared = PreparedMessages()
        self._messages: list[llm.Message] = []  # those of the next request
        self.add(*entries)
        queued = next((e.body for e in reversed(self.entries) if isinstance(e.body, log.Queued)), log.Queued())
        self.queue = Queue((*queued.steering, *queued.follow_ups))  # no turn is running, so none can be steered

    def add(self, *entries: log.Entry) -> None:
        """Append entries whose ids and parents come from a log."""
        for entry in entries:
            self._place(entry)
            self.entries.append(entry)

    def parent_of(self, entry_id: str) -> str | None:
        """Return the id of the entry before an entry of the path; None for the first. Raises `KeyError`."""
        if (position := self._find(entry_id, -1)) < 0:
            raise KeyError(entry_id)
        return self.path[position - 1].id if position else None

    @property
    def request_entries(self) -> list[log.Entry]:
        """The entries of a request: the path, or its newest compaction with the entries it keeps, and later entries."""
        compacted, start = self.compacted_entries()
        return [*compacted, *self.path[start:]]

    def compacted_entries(self) -> tuple[list[log.Entry], int]:
        """Return the newest compaction with the entries it keeps, and the position after it; without one, [] and 0."""
        for n in range(len(self.path) - 1, -1, -1):
            if isinstance(self.path[n].body, log.Compaction):
                return apply_compaction(self.path[:n], self.path[n]), n + 1
        return [], 0

    @property
    def pins(self) -> list[str]:
        facts: list[str] = []
        for entry in self.path:
            if isinstance(entry.body, log.Pinned):
                facts = [fact for fact in facts if fact != entry.body.text]
                if not entry.body.is_removed:
                    facts.append(entry.body.text)
        return facts

    @property
    def unstarted_calls(self) -> tuple[llm.ToolUse, ...]:
        """The open calls that had not begun when the program ended, for asking about them after a resume.

        Calls begin in order, and one that waits for an answer holds up those after it: from the first unanswered
        question on, none has begun. Dry runs and pending calls have begun.
        """
        unanswered = self.unanswered - self.dry_runs
        calls = (call for call in self.open_calls.values() if call.id not in self.pending_calls)
        return tuple(dropwhile(lambda call: call.id not in unanswered, calls))

    @property
    def messages(self) -> tuple[llm.Message, ...]:
        return tuple(self._messages)  # neighbouring messages of the user are joined

    def valid_messages(self) -> tuple[llm.Message, ...]:
        return self.prepared.valid(self.messages)  # repaired if a provider would reject them

    def _place(self, entry: log.Entry) -> None:
        """Put an entry at the end of the path. It begins a branch if its parent is not the last entry of the path."""
        body = entry.body
        if isinstance(body, log.Rewound):
            self._set_path(self.path[: self._find(body.before, len(self.path))])
        elif entry.parent_id is not None and self.path and entry.parent_id != self.path[-1].id:
            self._branch_off(entry.parent_id)
        if isinstance(body, log.Retracted):  # only from the first one on: older results may have the same ids
            start = self._find(next(iter(body.ids), ""), len(self.path))
            self._set_path(self.path[:start] + [other for other in self.path[start:] if other.id not in body.ids])
        self.path.append(entry)
        if isinstance(body, log.Compaction):
            self._rebuild()
        else:
            self._follow_calls(entry)
            _add_message(self._messages, body)

    def _branch_off(self, parent_id: str) -> None:
        """Continue from an entry of the path or of another branch; keep the path if there is no such entry."""
        if (on_path := self._find(parent_id, -1)) >= 0:
            self._set_path(self.path[: on_path + 1])
            return
        branch: list[log.Entry] = []
        next_id: str | None = parent_id
        for entry in reversed(self.entries):  # parents come before their children
            if entry.id == next_id:
                branch.append(entry)
                next_id = entry.parent_id
        if branch:
            retracted = {id for entry in branch if isinstance(entry.body, log.Retracted) for id in entry.body.ids}
            self._set_path([entry for entry in reversed(branch) if entry.id not in retracted])

    def _find(self, entry_id: str, otherwise: int) -> int:
        # Search from the end: ids of results come from models, which may use one again, and the newest is meant.
        found = (n for n in range(len(self.path) - 1, -1, -1) if self.path[n].id == entry_id)
        return next(found, otherwise)

    def _set_path(self, path: list[log.Entry]) -> None:
        if path != self.path:
            self.path = path
            self._rebuild()

    def _rebuild(self) -> None:
        self.open_calls, self.unanswered, self.dry_runs = {}, set(), set()
        self.applied_changes, self.pending_calls, self.last_reply = {}, {}, None
        for entry in self.path:
            self._follow_calls(entry)
        self._messages = messages_of(self.request_entries)

    def _follow_calls(self, entry: log.Entry) -> None:
        """Update the newest reply and the facts about open calls for an entry that is added to the path."""
        match entry.body:
            case log.Assistant(content=content):
                self.last_reply = entry
                self.open_calls |= {block.id: block for block in content if isinstance(block, llm.ToolUse)}
            case log.Result(result=result):
                self.open_calls.pop(result.tool_use_id, None)
                self.unanswered.discard(result.tool_use_id)
                self.dry_runs.discard(result.tool_use_id)
                self.pending_calls.pop(result.tool_use_id, None)
                self.applied_changes.pop(result.tool_use_id, None)
            case log.CallAsked(id):
                self.unanswered.add(id)
            case log.CallTried(id):
                self.dry_runs.add(id)
            case log.CallsHandedOver(ids):
                self.pending_calls |= {id: self.open_calls[id] for id in ids if id in self.open_calls}
            case log.CallKept(id, names):
                self.applied_changes[id] = names
            case log.CallAllowed(id) | log.CallDenied(id):
                # The decision is about the call, or about the changes of its dry run.
                self.unanswered.discard(id)
                self.dry_runs.discard(id)


def apply_compaction(path: Sequence[log.Entry], compaction: log.Entry) -> list[log.Entry]:
    """Return a compaction and the entries before it that it keeps."""
    body = compaction.body
    assert isinstance(body, log.Compaction)
    first = next((n for n, entry in enumerate(path) if entry.id == body.first_kept), len(path))
    remaining = (entry for entry in path[first:] if not isinstance(entry.body, log.Compaction))
    return [compaction, *(_as_compacted(entry, body.stubs) for entry in remaining)]


def messages_of(entries: Iterable[log.Entry]) -> list[llm.Message]:
    messages: list[llm.Message] = []
    for entry in entries:
        _add_message(messages, entry.body)
    return messages


def _add_message(messages: list[llm.Message], body: log.Body) -> None:
    """Append the message of an entry, if it has one; neighbouring messages of the user are joined."""
    if (message := _message(body)) is None:
        return
    if messages and messages[-1].role == message.role == "user":
        content = messages[-1].content + message.content
        results_first = sorted(content, key=lambda block: not isinstance(block, llm.ToolResult))  # the API's rule
        messages[-1] = llm.Message("user", tuple(results_first))
    else:
        messages.append(message)


def _message(body: log.Body) -> llm.Message | None:
    """Return the message of an entry; None for an entry that does not reach the model."""
    match body:
        case log.User(content) | log.Assistant(content=content):
            content = llm.without_empty_text(content)
            return llm.Message("user" if isinstance(body, log.User) else "assistant", content) if content else None
        case log.Compaction(carried=carried):
            return llm.Message("user", (llm.Text(carried),)) if carried.strip() else None
        case log.Result(result=result):
            return llm.Message("user", (result,))
    return None


def _as_compacted(entry: log.Entry, stubs: dict[str, str]) -> log.Entry:
    """Return the entry with its stub as content, or without signed thinking, which is valid only in the old context."""
    stub, body = stubs.get(entry.id), entry.body
    match body:
        case log.User() if stub is not None:
            shown: log.Body = log.User((llm.Text(stub),), body.is_reminder)
        case log.Result(result=result) if stub is not None:
            shown = replace(body, result=llm.ToolResult(result.tool_use_id, stub, result.is_error))
        case log.Assistant(content=content) if stub is not None:
            calls = (
                replace(block, input=_shortened(block.input)) for block in content if isinstance(block, llm.ToolUse)
            )
            shown = replace(body, content=(llm.Text(stub), *calls))
        case log.Assistant(content=content):
            shown = replace(body, content=tuple(block for block in content if not _is_signed_thinking(block)))
        case _:
            return entry
    return replace(entry, body=shown)


def _is_signed_thinking(block: llm.Block) -> bool:
    return isinstance(block, llm.RedactedThinking) or (isinstance(block, llm.Thinking) and block.signature is not None)


def _shortened(value: Any) -> Any:
    if isinstance(value, str) and (more := len(value) - MAX_OLD_ARGUMENT_CHARS) > 0:
        return f"{value[:MAX_OLD_ARGUMENT_CHARS]}… [+{more:,} characters]"
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in value.items()}
    return [_shortened(item) for item in value] if isinstance(value, list) else value


class ProviderCount(NamedTuple):
    """A provider's count of the tokens of a reply and everything before it."""

    tokens: int = 0
    size: models.Size = models.Size()  # the size that agentcli measures for the same content
    uncertain: int = 0  # tokens of reasoning, which the provider may not count in later requests


class RequestSize:
    """Measures the next request: a provider's count of an earlier one, and an estimate of the content added since."""

    def __init__(self, conversation: Conversation) -> None:
        self.calibration = models.Calibration()
        self._conversation = conversation
        self._learned: set[str] = set()  # ids of replies from which the calibration has learned
        self._prefix: tuple[str, tuple[ToolSpec, ...]] = ("", ())  # the newest system text and tools
        self._prefix_size = models.Size()
        self._model: models.ModelInfo | None = None  # the model of the last call of `tokens`
        self._forget_sizes()

    def tokens(self, system: str, tools: tuple[ToolSpec, ...], model: models.ModelInfo) -> int:
        """Return the tokens of the next request: the model's newest count, and an estimate of later content."""
        if (system, tools) != self._prefix:
            self._prefix, self._prefix_size = (system, tools), models.prefix_size(system, tools)
        if self._model != model:  # sizes differ, because each model is sent different thinking and images
            self._forget_sizes()
        self._model = model
        self._measure_new_entries(model)
        counted = self._counted.get(model.name, ProviderCount())  # default: estimate all of it
        added = self._entries_size.plus(self._prefix_size).minus(counted.size)
        if not model.takes_images:  # a short text is sent in place of each image
            added = models.Size(added.ascii, added.foreign)
        return max(0, counted.tokens + self.calibration.tokens(model.name, added, model.token_factor * models.SAFETY))

    def now(self) -> int:
        """Return the tokens for the model and the prefix of the last call of `tokens`; 0 without one."""
        return self.tokens(*self._prefix, self._model) if self._model else 0

    def _forget_sizes(self) -> None:
        self._path: list[log.Entry] = []  # the measured path; a rewound conversation has a new list
        self._measured = 0  # the number of measured entries of `_path`
        self._entries_size = models.Size()  # of the measured entries
        self._counted: dict[str, ProviderCount] = {}  # the newest count of each model

    def _measure_new_entries(self, model: models.ModelInfo) -> None:
        """Add the sizes of new entries for `model`, or of all entries if the path was replaced or compacted."""
        path = self._conversation.path
        # A rewind makes a new list.
        if path is not self._path or any(isinstance(entry.body, log.Compaction) for entry in path[self._measured :]):
            self._forget_sizes()
            # Entries before `after_compaction` are sent as `compacted`, or not at all.
            compacted, after_compaction = self._conversation.compacted_entries()
            for entry in compacted:
                self._entries_size = self._entries_size.plus(_size(entry.body, model))
            self._path, self._measured = path, after_compaction
        for entry in path[self._measured :]:
            self._add(entry, model)
        self._measured = len(path)

    def _add(self, entry: log.Entry, model: models.ModelInfo) -> None:
        """Add the size of an entry. A reply that has the provider's count becomes the base of all later estimates.

        The count may include reasoning that the next request does not have. If its tokens are known, they are
        subtracted.
        """
        body, size = entry.body, _size(entry.body, model)
        prompt_size = self._entries_size.plus(self._prefix_size)  # if the entry is a reply, the size of its request
        self._entries_size = self._entries_size.plus(size)
        if not isinstance(body, log.Assistant) or not body.usage.prompt_tokens or body.is_estimated:
            return
        model_name, usage = f"{body.provider}/{body.model}", body.usage
        if entry.id not in self._learned:  # entries are measured again, for example after a rewind
            self._learned.add(entry.id)
            self._learn(model_name, usage.prompt_tokens, prompt_size)
        sent = models.sent_back(body.content, model)  # the blocks that the next request has, perhaps without thinking
        reasoning = [block for block in sent if isinstance(block, llm.Thinking | llm.RedactedThinking | llm.Opaque)]
        omits_thinking = len(sent) < len(body.content) and not reasoning
        if body.stop_reason == "interrupted" or (omits_thinking and not usage.reasoning_tokens):
            # It is unknown how many of the reply's tokens the next request has: use only the count of its prompt.
            self._counted[model_name] = ProviderCount(usage.prompt_tokens, prompt_size)
            return
        unsent = 0 if reasoning else usage.reasoning_tokens  # counted by the provider, but not sent back
        # Even reasoning that is sent back may not count in later requests, so its tokens are uncertain. Not every
        # provider reports them, so they are measured, too.
        measured = int(models.size_of(reasoning, model.name).bytes / models.BYTES_PER_TOKEN)
        uncertain = max(usage.reasoning_tokens - unsent, measured)
        self._counted[model_name] = ProviderCount(usage.context_tokens - unsent, prompt_size.plus(size), uncertain)

    def _learn(self, name: str, prompt_tokens: int, prompt_size: models.Size) -> None:
        """Learn a model's tokens per byte from what was added since its last count, if both are certain enough."""
        last = self._counted.get(name, ProviderCount())
        added = prompt_size.minus(last.size)
        if not added.media and last.uncertain <= MAX_UNCERTAIN_SHARE * added.bytes / models.BYTES_PER_TOKEN:
            self.calibration.learn(name, added, prompt_tokens - last.tokens)


def _size(body: log.Body, model: models.ModelInfo) -> models.Size:
    message = _message(body)
    if message is None:
        return models.Size()
    return models.size_of(models.sent_back(message.content, model), model.name).plus(models.MESSAGE_SIZE)
