"""Keeps and draws a session's unfinished work: running calls, thinking, a retry, the queue."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct, field

from agentcli.agent import events
from agentcli.agent.ops import OWN_CALL
from agentcli.conversation.entries import Entry, Queued, User
from agentcli.conversation.history import counted
from agentcli.conversation.mentions import typed_blocks
from agentcli.frontends.printable import escape_hidden, printable, with_tilde
from agentcli.frontends.terminal.text.fragments import Row, clipped, row_width, wrapped_tail
from agentcli.frontends.terminal.text.markdown import MarkdownStream
from agentcli.llm.messages import Block, Image, Text
from agentcli.patterns import lazy_pattern

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
TICK_S = 0.25  # between two frames of the spinner
TAIL_ROWS = 3  # of a command's output, or of thinking
SHOW_TAIL_AFTER_S = 0.5  # shorter commands show no output while they run
SILENCE_S = 30.0  # without any event, after which the status row says so
MAX_TAIL_CHARS = 4_000  # kept of a running command's output
MAX_HEAD_CHARS = 1_000  # of a call's arguments that are searched for the path
_PATH = lazy_pattern(r'"path"\s*:\s*"([^"\\]+)"')  # a path without escapes, in JSON
# By tool, the row of a call whose arguments the model is still writing, with a place for the path.
_ARRIVING = {
    "file_write": "Writing {}", "file_edit": "Editing {}", "bash": "Preparing a command",
    "create_subagent": "Preparing a subagent's task", "todo": "Preparing the to-do list",
}  # fmt: skip


class RunningCall(Struct, kw_only=True):
    """A running call; the fields after `tail` are about the subagent that it started."""

    name: str
    title: str
    started: float  # by `time.monotonic()`
    tail: str = ""  # the end of its output, or a subagent's newest call
    rounds: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    transcript: str = ""  # its end

    def add_output(self, text: str) -> None:
        self.tail = (self.tail + printable(text))[-MAX_TAIL_CHARS:]

    def add_to_transcript(self, text: str, *, is_line: bool = True) -> None:
        line_end = "\n" if is_line and self.transcript and not self.transcript.endswith("\n") else ""
        self.transcript = f"{self.transcript}{line_end}{text}"[-MAX_TAIL_CHARS:]

    def format_spending(self, now: float) -> str:
        parts = [f"{seconds:.0f} s"] if (seconds := now - self.started) >= 1 else []
        parts += [f"{self.tokens:,} tokens"] if self.rounds else []
        parts += [f"${self.cost_usd:.4f}"] if self.cost_usd else []
        return "".join(f" · {part}" for part in parts)


class ArrivingCall(Struct):
    """A call whose arguments the model is still writing. Each piece of the arguments is read only once."""

    name: str
    path: str = ""
    lines: int = 0  # line ends in the arguments so far, about
    _head: str = ""  # the beginning of the arguments, until the path is found

    def feed(self, partial_json: str, home: str) -> None:
        """Read the next piece of the arguments' JSON text. A path below `home` is shortened."""
        if not self.path and len(self._head) < MAX_HEAD_CHARS:
            self._head += partial_json
            found = _PATH.search(self._head)
            self.path = escape_hidden(with_tilde(found[1], home)) if found else ""
        self.lines += partial_json.count("\\n")

    def row(self, now: float, columns: int) -> Row:
        title = _ARRIVING.get(self.name) or f"Preparing {escape_hidden(self.name)}"
        lines = f" · {self.lines:,} lines" if self.lines > 1 else ""
        head: Row = [("accent", spinner(now)), ("", f" {title.replace('{}', self.path or 'a file')}")]
        return [*clipped(head, max(1, columns - len(lines))), *clipped([("muted", lines)], columns - 1)]


class PendingRetry(Struct, frozen=True):
    """A failed request, which is sent again when `time.monotonic()` is `at`."""

    retry: events.Retry
    at: float

    def row(self, now: float, columns: int) -> Row:
        retry, why = self.retry, " ".join(printable(self.retry.error).rstrip(".").split())
        number = f" {retry.number} of {retry.max_number}" if retry.max_number else ""
        then = f", then {retry.fallback}" if retry.fallback else ""
        text = f" Retry{number} in {max(0.0, self.at - now):.0f} s{then} · Esc to stop"
        return clipped([("warning", f"{spinner(now)}{text}"), ("muted", f" · {why}")], columns)


class TurnClock(Struct):
    """Measures a turn, except while questions wait for the person. Times are `time.monotonic()`."""

    started: float | None = None  # later by the time that questions took; None while no turn runs
    questions: dict[str, float] = field(default_factory=dict)  # the time at which each was asked, by its id
    paused_at: float = 0.0  # when the first open question was asked
    last_event: float = 0.0  # when the session's last event came, other than changes of the queue
    started_unix: float = 0.0  # the Unix time of the start

    def pause(self, question_id: str) -> None:
        now = time.monotonic()
        if not self.questions:
            self.paused_at = now
        self.questions[question_id] = now

    def resume(self, question_id: str) -> float:
        """Close a question; return the seconds for which it waited, 0 if it is not open."""
        now = time.monotonic()
        asked = self.questions.pop(question_id, None)
        if asked is None:
            return 0.0
        if not self.questions and self.started is not None:
            self.started += now - self.paused_at
        return now - asked


class Activity(Struct, kw_only=True):
    """Everything unfinished in a session. It is state of the front end only, and never stored."""

    clock: TurnClock = field(default_factory=TurnClock)
    calls: dict[str, RunningCall] = field(default_factory=dict)
    agents: dict[str, str] = field(default_factory=dict)  # by a running subagent's id, the key in `calls` of its row
    commands: dict[str, float] = field(default_factory=dict)  # by a running slash command's name, when it started
    thinking: str = ""
    # The state of the newest request; None once its text arrives.
    pending: PendingRetry | events.PromptProgress | ArrivingCall | None = None
    answer: MarkdownStream | None = None  # the part not printed yet is drawn with each frame
    queue: Queued = field(default_factory=Queued)

    def close_question(self, id: str) -> None:
        """Stop waiting for an answer; the wait counts neither for the turn's time nor for the call's."""
        waited = self.clock.resume(id)
        if call := self.calls.get(id):
            call.started += waited

    def end_call(self, id: str) -> RunningCall | None:
        """Remove a call and return it; if its subagent continues in the background, the row becomes the subagent's."""
        call = self.calls.pop(id, None)
        agent = next((agent for agent, shown_by in self.agents.items() if shown_by == id), "")
        if call is not None and agent:
            self.agents[agent], self.calls[agent] = agent, call
        return call

    def end_turn(self) -> None:
        """Forget the turn and its calls; the person's commands and background subagents continue."""
        self.clock, self.pending = TurnClock(), None
        self.calls = {id: call for id, call in self.calls.items() if id.startswith(OWN_CALL) or id in self.agents}

    def agent_title(self, id: str) -> str:
        """Return the name and task of a running subagent; empty for the main agent."""
        call = self.calls.get(self.agents.get(id, ""))
        return call.title if call else ""

    def follow_subagent(self, event: events.Event, format_title: Callable[[str], str]) -> tuple[str, str] | None:
        """Update a subagent's row and its transcript; return a line to print and its role, or None.

        While the call that started it runs, the row is that call's; a subagent in the background has a row of its own.
        """
        id = event.agent_id
        call = self.calls.get(self.agents.get(id, ""))
        match event:
            case events.SubagentStarted(_, call_id, _, task):
                parent = self.calls.get(call_id)
                self.agents[id] = call_id if parent else id
                title = format_title(f"{id}: {' '.join(task.split())}")
                started = parent.started if parent else time.monotonic()
                self.calls[self.agents[id]] = RunningCall(name="create_subagent", title=title, started=started)
            case events.EntryStored(Entry(body=User(content, is_reminder=False))) if call:
                call.add_to_transcript(f"› {message_text(content)}\n")
            case events.TextDelta(text) if call:
                call.add_to_transcript(printable(text), is_line=False)
            case events.ToolStarted(title=title) if call:
                call.tail = format_title(title)
                call.add_to_transcript(f"• {call.tail}\n")
            case events.ToolFinished(summary=summary) if call:
                call.add_to_transcript(f"  {'✗' if event.result.is_error else '✓'} {printable(summary)}\n")
            case events.UsageReported(usage, cost_usd) if call:
                call.rounds += 1
                call.tokens += usage.context_tokens
                call.cost_usd += cost_usd or 0.0
            case events.SubagentEnded(end=end, turns=turns):
                if self.agents.pop(id, "") == id:  # it ran in the background
                    self.calls.pop(id, None)
                    return f"{id} {end} after {counted(turns, 'round')}: /agents show {id}", "muted"
            case events.Notice(text):
                return f"{id}: {text}", "warning"
            case events.HookRan(decision="deny", reason=reason):
                return f"{id}: a hook denied a call: {reason}", "muted"
        return None

    def agent_rows(self, id: str, columns: int, max_rows: int) -> list[Row]:
        """Return a running subagent's task, and the end of its transcript below."""
        if (call := self.calls.get(self.agents.get(id, ""))) is None:
            return []
        head: Row = [("accent", f"▾ {call.title}")]
        keys: Row = [("muted", f"  Esc to close · /agents tell {id} TEXT to steer it")]
        rows = wrapped_tail(call.transcript, max(1, columns - 2), max(1, max_rows - 2))
        body: list[Row] = [[("", "  "), *row] for row in rows]
        return [clipped(row, columns) for row in (head, *body, keys)]

    @contextmanager
    def hide_command_rows(self) -> Iterator[None]:
        """Leave out the rows of running slash commands while one of them waits for the person."""
        running, self.commands = self.commands, {}
        try:
            yield
        finally:
            self.commands |= running

    @property
    def is_busy(self) -> bool:
        return self.clock.started is not None or bool(self.calls) or bool(self.commands)

    @property
    def queued(self) -> list[tuple[Block, ...]]:
        """The messages that wait, in the order in which the model gets them."""
        return [*self.queue.steering, *self.queue.follow_ups]

    @property
    def is_moving(self) -> bool:
        """True if rows change with time alone; False once everything unfinished waits for the person."""
        questions = len(self.clock.questions)
        return bool(self.commands) or (self.is_busy and (not questions or questions < len(self.calls)))

    def rows(self, columns: int, max_rows: int) -> list[Row]:
        """Return at most `max_rows` rows. If room is short, the answer is cut first, then the calls, the queue last."""
        if max_rows < 1:
            return []
        rows = self._queue_rows(columns, max(1, max_rows // 2))
        for part in (self._status_rows(columns), self._call_rows(columns)):
            rows = [*part[: max_rows - len(rows)], *rows]
        answer = self.answer.preview() if self.answer else []
        room = max_rows - len(rows)
        return [*(clipped(row, columns) for row in answer[max(0, len(answer) - room) :]), *rows]

    def _call_rows(self, columns: int) -> list[Row]:
        rows: list[Row] = []
        now = time.monotonic()
        for id, call in self.calls.items():
            if id in self.clock.questions:  # its question is shown instead
                continue
            spending: Row = [("muted", call.format_spending(now))]
            room = columns - row_width(spending)
            if call.name == "create_subagent":  # its task says more than its spending
                room = max(room, columns * 3 // 4)
            head = clipped([("accent", spinner(now)), ("", f" {call.title}")], max(1, room))
            rows.append(clipped([*head, *spending], columns))
            if call.tail and now - call.started >= SHOW_TAIL_AFTER_S:
                tail = [line for line in call.tail.rstrip("\n").split("\n") if line.strip()][-TAIL_ROWS:]
                rows += [clipped([("muted", f"  {line}")], columns) for line in tail]
        for name, started in self.commands.items():
            if now - started >= SHOW_TAIL_AFTER_S:
                rows.append(
                    clipped([("accent", spinner(now)), ("muted", f" /{name} · {now - started:.0f} s")], columns)
                )
        return rows

    def _status_rows(self, columns: int) -> list[Row]:
        """Return what the turn waits for, unless calls or questions show it, and the end of the model's thoughts."""
        started, pending, now = self.clock.started, self.pending, time.monotonic()
        resent_at = pending.at if isinstance(pending, PendingRetry) else 0.0  # until then, nothing can be received
        silent_s = now - max(resent_at, self.clock.last_event, started or 0.0)
        if started is not None and silent_s < SILENCE_S and isinstance(pending, PendingRetry | ArrivingCall):
            return [pending.row(now, columns)]
        if started is None or self.calls or self.clock.questions:
            return []
        if silent_s >= SILENCE_S:
            text = f"{spinner(now)} Nothing received for {silent_s:.0f} s · Esc to stop"
            return [clipped([("warning", text)], columns)]
        work = "Thinking" if self.thinking else "Working"
        if isinstance(pending, events.PromptProgress):
            work = f"Reading the prompt · {pending.tokens_read:,} of {pending.tokens:,} tokens ·"
        text = f" {work} {now - started:.0f} s"
        thoughts = wrapped_tail(self.thinking, max(1, columns - 2), TAIL_ROWS, "muted") if self.thinking else []
        lines: list[Row] = [[("", "  "), *line] for line in thoughts]
        return [clipped(row, columns) for row in ([("accent", spinner(now)), ("muted", text)], *lines)]

    def _queue_rows(self, columns: int, max_rows: int) -> list[Row]:
        waiting = [("next: ", content) for content in self.queue.steering]
        waiting += [("queued: ", content) for content in self.queue.follow_ups]
        texts = [(when, " ".join(message_text(content).split())) for when, content in waiting]
        rows: list[Row] = [[("accent", when), ("muted", text)] for when, text in texts]
        if len(rows) > max_rows > 1:
            rows[max_rows - 1 :] = [[("muted", f"and {len(rows) - max_rows + 1} more")]]
        return [clipped(row, columns) for row in rows[:max_rows]]


def message_text(content: Sequence[Block]) -> str:
    """Return the text that the person wrote, without attached files."""
    blocks = (block for block in typed_blocks(content) if isinstance(block, Text | Image))
    return "".join(printable(block.text) if isinstance(block, Text) else "[Image]" for block in blocks)


def spinner(now: float) -> str:
    return SPINNER[int(now / TICK_S) % len(SPINNER)]
