"""Draws rows for everything under way: running calls, thinking, the queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from agentcli.agent.events import Event, HookRan, Notice, SubagentEnded, SubagentStarted, ToolStarted, UsageReported
from agentcli.conversation.mentions import typed_blocks
from agentcli.frontends.printable import printable
from agentcli.frontends.terminal.text.fragments import Row, clipped, row_width, wrapped_tail
from agentcli.frontends.terminal.text.markdown import MarkdownStream
from agentcli.llm.messages import Block, Image, Text

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
TICK_S = 0.25
TAIL_ROWS = 3
SHOW_TAIL_AFTER_S = 0.5
LONGEST_TAIL = 4_000  # characters kept of a running command's output


@dataclass
class RunningCall:
    """`rounds` and `tokens` are those of the subagent that a call lets work."""

    name: str
    title: str
    started: float
    tail: str = ""
    rounds: int = 0
    tokens: int = 0
    cost_usd: float = 0.0

    def spent(self, now: float) -> str:
        """Format the time that the call has run, and the tokens and money that a subagent used."""
        took = now - self.started
        parts = [f"{took:.0f} s"] if took >= 1 else []
        parts += [f"{self.tokens:,} tokens"] if self.rounds else []
        parts += [f"${self.cost_usd:.4f}"] if self.cost_usd else []
        return "".join(f" · {part}" for part in parts)


@dataclass
class Live:
    """The unfinished part of a session. Front-end state only; nothing here is stored."""

    calls: dict[str, RunningCall] = field(default_factory=dict)
    turn_since: float | None = None
    thinking: str = ""
    agents: dict[str, str] = field(default_factory=dict)  # subagents that run, and the calls they are shown at
    waiting: str = ""  # why nothing arrives just now, such as a retry
    waiting_until: float = 0.0
    answer: MarkdownStream | None = None  # its end, which is not printed yet, is asked for at each frame
    commands: dict[str, float] = field(default_factory=dict)  # running slash commands, and since when
    asked: dict[str, float] = field(default_factory=dict)  # calls that wait for a yes, and since when
    steering: tuple[tuple[Block, ...], ...] = ()
    follow_ups: tuple[tuple[Block, ...], ...] = ()
    interrupt_key: str = "Esc"
    _waits_since: float = 0.0

    def clear(self) -> None:
        """Another session begins."""
        vars(self).update(vars(Live(interrupt_key=self.interrupt_key)))

    def ask(self, id: str) -> None:
        """Note that something waits for the person; that time counts neither for the turn nor for the call."""
        self._waits_since = self._waits_since if self.asked else time.monotonic()
        self.asked[id] = time.monotonic()

    def answered(self, id: str) -> None:
        since, now = self.asked.pop(id, None), time.monotonic()
        if since is None:
            return
        if call := self.calls.get(id):
            call.started += now - since
        if not self.asked and self.turn_since is not None:
            self.turn_since += now - self._waits_since

    def follow_subagent(self, event: Event, title: Callable[[str], str]) -> tuple[str, str] | None:
        """Keep a subagent's row up to date: that of the call that made it, or its own. Gives a line to print."""
        id = event.agent_id
        call = self.calls.get(self.agents.get(id, ""))
        match event:
            case SubagentStarted(_, call_id, _, task):
                made_by = self.calls.get(call_id)
                self.agents[id] = call_id if made_by else id
                since = made_by.started if made_by else time.monotonic()
                named = title(f"{id}: {' '.join(task.split())}")
                self.calls[self.agents[id]] = RunningCall("create_subagent", named, since)
            case ToolStarted(title=doing) if call:
                call.tail = title(doing)
            case UsageReported(usage, cost_usd) if call:
                call.rounds += 1
                call.tokens += usage.context_tokens
                call.cost_usd += cost_usd or 0.0
            case SubagentEnded(end=end, turns=turns):
                if self.agents.pop(id, "") == id:  # it ran in the background
                    self.calls.pop(id, None)
                    return f"{id} {end} after {turns} rounds: /agents show {id}", "muted"
            case Notice(text):
                return f"{id}: {text}", "warning"
            case HookRan(decision="deny", reason=reason):
                return f"{id}: a hook refused: {reason}", "muted"
            case _:
                pass
        return None

    @contextmanager
    def waiting_for_person(self) -> Iterator[None]:
        """Keep the clocks of running slash commands out of sight meanwhile."""
        running, self.commands = self.commands, {}
        try:
            yield
        finally:
            self.commands |= running

    @property
    def is_busy(self) -> bool:
        return self.turn_since is not None or bool(self.calls) or bool(self.commands)

    @property
    def runs_command(self) -> bool:
        return any(call.name == "bash" for call in self.calls.values())

    @property
    def queued(self) -> list[tuple[Block, ...]]:
        """The messages that wait, in the order in which the model gets them."""
        return [*self.steering, *self.follow_ups]

    @property
    def is_moving(self) -> bool:
        """True if time alone changes a row; false once everything left waits for the person."""
        waits = bool(self.asked) and len(self.asked) >= len(self.calls)
        return bool(self.commands) or (self.is_busy and not waits)

    def rows(self, columns: int, most: int) -> list[Row]:
        """At most `most` rows, the least important left out first."""
        if most < 1:
            return []
        queue = self._queue_rows(columns, max(1, most // 2))
        room = most - len(queue)
        status = self._status_rows(columns)[:room] if room > 0 else []
        room -= len(status)
        calls = self._call_rows(columns, room) if room > 0 else []
        room -= len(calls)
        return [*self._answer_rows(columns, room), *calls, *status, *queue]

    def _answer_rows(self, columns: int, most: int) -> list[Row]:
        """As much as there is room for of the end of what is not printed yet; of a table its head too."""
        rows = [clipped(row, columns) for row in (self.answer.preview() if self.answer else ())]
        if len(rows) <= most:
            return rows
        head = next((number for number, row in enumerate(rows) if row), 0) + 2
        if self.answer is None or not self.answer.is_table or most < head + 2:
            return rows[len(rows) - most :] if most > 0 else []
        left_out = clipped([("muted", f"… {len(rows) - most + 1} more lines")], columns)
        return [*rows[:head], left_out, *rows[len(rows) - most + head + 1 :]]

    def _call_rows(self, columns: int, most: int) -> list[Row]:
        rows: list[Row] = []
        now = time.monotonic()
        running = [call for id, call in self.calls.items() if id not in self.asked]
        for call in running[: max(0, most)]:
            took = now - call.started
            head: Row = [("accent", spinner(now)), ("", f" {call.title}")]
            spent: Row = [("muted", call.spent(now))]
            room = max(1, columns - row_width(spent))
            rows.append(clipped([*clipped(head, room), *spent], columns))
            if call.tail and took >= SHOW_TAIL_AFTER_S:
                tail = [line for line in call.tail.rstrip("\n").split("\n") if line.strip()][-TAIL_ROWS:]
                rows += [clipped([("muted", f"  {line}")], columns) for line in tail]
        for name, since in self.commands.items():
            if now - since >= SHOW_TAIL_AFTER_S:
                text = f" /{name} · {now - since:.0f} s · {self.interrupt_key} interrupts"
                rows.append(clipped([("accent", spinner(now)), ("muted", text)], columns))
        return rows[:most]

    def _status_rows(self, columns: int) -> list[Row]:
        if self.turn_since is None or self.calls or self.asked:
            return []
        now = time.monotonic()
        took = now - self.turn_since
        if self.waiting:
            left = max(0.0, self.waiting_until - now)
            why = " ".join(self.waiting.split())
            text = f"{spinner(now)} Retrying in {left:.0f} s · {self.interrupt_key} to stop: {why}"
            return [clipped([("warning", text)], columns)]
        text = f" {'Thinking' if self.thinking else 'Working'} {took:.0f} s · {self.interrupt_key} interrupts"
        rows = [clipped([("accent", spinner(now)), ("muted", text)], columns)]
        if self.thinking:
            lines = wrapped_tail(self.thinking, max(1, columns - 2), TAIL_ROWS)
            rows += [clipped([("muted", f"  {line}")], columns) for line in lines]
        return rows

    def _queue_rows(self, columns: int, most: int) -> list[Row]:
        """The queue, first said first."""
        queue = [*(("next: ", content) for content in self.steering), *(("queued: ", c) for c in self.follow_ups)]
        rows: list[Row] = [[("accent", kind), ("muted", " ".join(message_text(c).split()))] for kind, c in queue]
        if len(rows) > most > 1:
            rows[most - 1 :] = [[("muted", f"and {len(rows) - most + 1} more")]]
        return [clipped(row, columns) for row in rows[:most]]


def message_text(content: Sequence[Block]) -> str:
    """The person's words, without the files attached to them."""
    blocks = (block for block in typed_blocks(content) if isinstance(block, Text | Image))
    return "".join(printable(block.text) if isinstance(block, Text) else "[Image]" for block in blocks)


def spinner(now: float) -> str:
    return SPINNER[int(now / TICK_S) % len(SPINNER)]
