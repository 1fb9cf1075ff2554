"""From events to what the terminal shows: finished blocks are printed, the rest is kept in `Live`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from agentcli.agent.events import (
    Compaction,
    Done,
    Event,
    Notice,
    ProviderSwitched,
    QueueChanged,
    Retry,
    Steered,
    TextDelta,
    ThinkingDelta,
    ToolFinished,
    ToolOutput,
    ToolStarted,
    TurnEnded,
    TurnFailed,
    TurnStarted,
)
from agentcli.agent.own_command import OWN_CALL
from agentcli.conversation.entries import Assistant, Entry, Result, Unreadable, User, open_calls, retracted_ids
from agentcli.frontends.printable import PrintableStream, exposed, printable, with_tilde
from agentcli.frontends.terminal.markdown.stream import MarkdownStream
from agentcli.frontends.terminal.output.live import LONGEST_TAIL, Arriving, Live, RunningCall, said
from agentcli.frontends.terminal.output.tool_views import Folded, duration, tool_view
from agentcli.frontends.terminal.text.diff import diff_fragments
from agentcli.frontends.terminal.text.fragments import Fragment
from agentcli.frontends.terminal.text.highlight import warm_up
from agentcli.frontends.terminal.text.wrapping import wrapped
from agentcli.llm.messages import Block, Text, ToolResult, ToolUse
from agentcli.tools.summary import call_title, diff_counts

MOST_FOLDED = 50
PROMPT_LINES = 20  # of a long message that waited, or was said earlier
LONG_TURN_S = 30.0  # after which the end says how long it took and what it used
REPLAYED_ENTRIES = 30  # of a resumed conversation, the newest


class TextStream(Arriving, Protocol):
    """What prints an answer as it arrives; `MarkdownStream` is one."""

    def feed(self, text: str) -> list[Fragment]: ...

    def close(self) -> list[Fragment]: ...


Print = Callable[[Sequence[Fragment]], None]


class TurnView:
    """Shows a session's events through `print`; `columns` tells how wide the window is now.

    `stream` makes what prints an answer (None: Markdown). Without a live screen calls are told of when they start, and
    what was typed stands there already. `unfold_key` shows the whole of what is cut, where there is one. With `wraps`
    prose is broken at words, else by the terminal. Paths below `home` begin with a tilde.
    """

    def __init__(
        self,
        print: Print,
        live: Live,
        *,
        columns: Callable[[], int],
        at_line_start: Callable[[], bool],
        stream: Callable[[], TextStream] | None = None,
        is_live: bool = True,
        unfold_key: str = "Ctrl-O",
        wraps: bool = True,
        home: str = "",
    ) -> None:
        self._print = print
        self._columns = columns
        self._at_line_start = at_line_start
        self._live = live
        self._clean = PrintableStream()
        self._new_stream = stream or (lambda: MarkdownStream(width=columns, wraps=wraps))
        self._is_live = is_live
        self._wraps = wraps and is_live
        self._home = home
        self._unfold_key = unfold_key
        self._markdown = self._new_stream()
        self._has_text = False
        self._thinking_since = 0.0
        self._previewed: set[str] = set()
        self._taken_back: list[Sequence[Block]] = []
        self._last_kind = ""  # of the block printed last; empty after an empty line
        self.folded: deque[Folded] = deque(maxlen=MOST_FOLDED)

    def show(self, event: Event) -> None:
        live = self._live
        match event:
            case TextDelta(text):
                self._end_thinking()
                live.waiting = ""
                if not self._has_text:
                    self._begin("answer")
                    self._has_text = True
                self._print(self._markdown.feed(self._clean.feed(text)))
                live.answer = self._markdown
            case ThinkingDelta(text):
                if not live.thinking:
                    self._thinking_since = time.monotonic()
                live.waiting = ""
                live.thinking += printable(text)
            case TurnStarted(number):
                live.turn_since = live.turn_since or time.monotonic()
                if number == 1:
                    warm_up()
            case ToolStarted(id, name, _, title):
                self._end_text()
                live.calls[id] = RunningCall(name, self._title(title), time.monotonic())
                if not self._is_live:
                    self.line(f"… {title}", "muted")
            case ToolOutput(id, text):
                if call := live.calls.get(id):
                    call.tail = (call.tail + printable(text))[-LONGEST_TAIL:]
            case ToolFinished():
                self._finished(event)
            case TurnEnded():
                self._end_text()
            case Retry(number, delay_s, error):
                live.waiting = f"{printable(error)} (try {number + 1})"
                live.waiting_until = time.monotonic() + delay_s
            case Notice(text):
                self.line(text, "warning")
            case ProviderSwitched(before, after):
                self.line(f"{before} → {after}", "muted")
            case Steered(skipped):
                titles = ", ".join(call_title(call.name, call.input) for call in skipped[:3])
                self.line(
                    f"Not run, because your message came first: {titles}{'…' if len(skipped) > 3 else ''}", "muted"
                )
            case QueueChanged(steering, follow_ups):
                self._queue_changed(steering, follow_ups)
            case Compaction(before, after):
                self.line(f"Compacted: {before:,} → {after:,} tokens", "muted")
            case TurnFailed(error):
                answer = self._markdown if event.broke_off and self._has_text else None
                self._end_turn()
                self._markdown = answer or self._markdown  # what goes on stands within the same block
                self.line(f"✗ {error}", "error")
                if event.broke_off:
                    self.line("The answer broke off; Enter in the empty input goes on where it stopped.", "warning")
                self.gap()
            case Done():
                self._done(event)
            case _:
                pass

    def begin_anew(self) -> None:
        """Another session begins: what was unfinished of the one before is printed, the rest forgotten."""
        self._end_text()
        self._previewed.clear()
        self._taken_back.clear()
        self.folded.clear()
        self._last_kind = ""

    # What others print

    def line(self, text: str, roles: str = "") -> None:
        """Text on lines of its own."""
        self._end_text()
        self._begin("note")
        self._print(self._fitted([(roles, with_tilde(printable(text).rstrip("\n"), self._home) + "\n")]))

    def block(self, fragments: Sequence[Fragment], kind: str = "note") -> None:
        self._end_text()
        self._begin(kind)
        self._print(fragments)

    def diff(self, path: str, diff: str) -> None:
        """The changes of a file below its name."""
        counts = f"  {diff_counts(diff)}" if diff.startswith("--- ") else ""
        title = [("accent", exposed(path)), ("muted", f"{counts}\n")]
        self.block([*title, *diff_fragments(diff, width=self._columns(), most_lines=None), ("", "\n")])

    def gap(self) -> None:
        """An empty line, where there is none yet."""
        self._begin("")

    def markdown(self, text: str) -> None:
        """A whole Markdown text."""
        self._end_text()
        self._begin("answer")
        whole = self._new_stream()
        self._print([*whole.feed(printable(text)), *whole.close()])

    def typed(self, text: str) -> None:
        """What the person has just typed and sent."""
        self._end_text()
        self._markdown = self._new_stream()
        if self._is_live:
            self.prompt(text)
        else:
            self._last_kind = "prompt"

    def prompt(self, text: str) -> None:
        """What the person said."""
        self._end_text()
        self._begin("prompt")
        lines = printable(text).strip("\n").split("\n")
        said = "\n".join([lines[0], *(f"  {line}" for line in lines[1:PROMPT_LINES])])
        self._print(self._fitted([("prompt", "› "), ("said", said + "\n")], hang=2))
        if len(lines) > PROMPT_LINES:
            self._print([("muted", f"  … {len(lines) - PROMPT_LINES:,} more lines\n")])

    def _begin(self, kind: str) -> None:
        """Part blocks of different kinds by an empty line; calls and notes stand close together."""
        if self._last_kind and (kind != self._last_kind or kind == "prompt"):
            self._print([("", "\n")])
        self._last_kind = kind

    def _fitted(self, fragments: Sequence[Fragment], *, hang: int | None = None) -> Sequence[Fragment]:
        return wrapped(fragments, self._columns(), hang=hang) if self._wraps else fragments

    def _title(self, title: str) -> str:
        return exposed(with_tilde(title, self._home))

    def will_take_back(self, message: Sequence[Block]) -> None:
        """When this message leaves the queue it goes back into the input, not to the model."""
        self._taken_back.append(message)

    def was_previewed(self, call_id: str) -> None:
        """The diff that this call makes, or more than that, is on the screen already."""
        self._previewed.add(call_id)

    def replay(self, entries: Sequence[Entry]) -> None:
        """The newest part of a stored conversation."""
        gone = retracted_ids(entries)
        shown = [e for e in entries if e.id not in gone and isinstance(e.body, User | Assistant | Result | Unreadable)]
        shown = [e for e in shown if not (isinstance(e.body, User) and e.body.is_reminder)]
        if len(shown) > REPLAYED_ENTRIES:
            self.line(f"… {len(shown) - REPLAYED_ENTRIES:,} earlier entries", "muted")
        calls: dict[str, ToolUse] = {}
        for entry in shown[-REPLAYED_ENTRIES:]:
            match entry.body:
                case User() as user:
                    self.prompt(said(user.content))
                case Assistant(content):
                    for block in content:
                        if isinstance(block, Text) and block.text.strip():
                            self.markdown(block.text)
                        elif isinstance(block, ToolUse):
                            calls[block.id] = block
                case Result(result, name, summary, took, structured, kind, answer=answer):
                    call = calls.get(result.tool_use_id)
                    title = self._title(call_title(name, call.input if call else {}))
                    finished = ToolFinished(
                        result.tool_use_id, name, result, took, summary, structured, kind, answer=answer
                    )
                    self._show_tool(finished, title)
                case Unreadable(error):
                    self.line(f"[{error}]", "warning")
                case _:
                    pass
        for id in open_calls(entries):  # the program ended while they ran
            if call := calls.get(id):
                cut = ToolFinished(
                    id, call.name, ToolResult(id, "", is_error=True), 0.0, "cut off; its outcome is unknown"
                )
                self._show_tool(cut, self._title(call_title(call.name, call.input)))
        if shown:
            self.gap()

    # Inside

    def _finished(self, event: ToolFinished) -> None:
        call = self._live.calls.pop(event.id, None)
        self._end_text()
        self._show_tool(event, call.title if call else event.name)

    def _show_tool(self, event: ToolFinished, title: str) -> None:
        shown = event.id in self._previewed
        view = tool_view(event, title, columns=self._columns(), diff_was_shown=shown, unfold_key=self._unfold_key)
        self._previewed.discard(event.id)
        if view.folded is not None:
            self.folded.append(view.folded)
        if self._last_kind == "question":  # whose answer the line tells
            self._last_kind = "calls"
        self._begin("calls")
        self._print(view.fragments)

    def _end_thinking(self) -> None:
        thought = self._live.thinking
        if not thought:
            return
        self._live.thinking = ""
        took = duration((time.monotonic() - self._thinking_since) * 1000)
        how_long = f" for {took}" if took else ""
        words = len(thought.split())
        self.folded.append(Folded("Thinking", thought))
        self._begin("calls")
        rest = f" ({self._unfold_key})" if self._unfold_key else ""
        self._print([("muted", f"∴ Thought{how_long} · {words:,} words{rest}\n")])

    def _end_text(self) -> None:
        self._end_thinking()
        if self._has_text:
            self._has_text = False
            rest = self._markdown.feed(self._clean.close())
            self._print([*rest, *self._markdown.close()])
            self._markdown = self._new_stream()
            self._live.answer = None
        elif not self._at_line_start():
            self._print([("", "\n")])

    def _queue_changed(self, steering: Sequence[Sequence[Block]], follow_ups: Sequence[Sequence[Block]]) -> None:
        """Messages that have left the queue for the model are shown where they reach it."""
        live = self._live
        left = [*steering, *follow_ups]
        for content in live.queued:
            if content in left:
                left.remove(content)
            elif content in self._taken_back:
                self._taken_back.remove(content)
            else:
                self.prompt(said(content))
        live.steering = tuple(tuple(content) for content in steering)
        live.follow_ups = tuple(tuple(content) for content in follow_ups)

    def _end_turn(self) -> None:
        self._end_text()
        live = self._live
        live.asked.clear()
        live.turn_since = None
        live.waiting = ""
        live.calls = {id: call for id, call in live.calls.items() if id.startswith(OWN_CALL)}

    def _done(self, done: Done) -> None:
        for id in list(self._live.asked):
            self._live.answered(id)
        took = time.monotonic() - (self._live.turn_since or time.monotonic())
        self._end_turn()
        if why := _ENDINGS.get(done.reason):
            self.line(why, "warning")
        if took >= LONG_TURN_S:
            usage = done.usage
            parts = [
                duration(took * 1000),
                f"{usage.prompt_tokens:,} tokens in, {usage.output_tokens:,} out",
                f"${done.cost_usd:.4f}" if done.cost_usd else "",
            ]
            self.line(" · ".join(part for part in parts if part), "muted")
        self.gap()


_ENDINGS = {
    "interrupted": "Interrupted; what was said is kept.",
    "declined": "Stopped: say what to do instead.",
    "max_turns": "Stopped at the limit of requests for one prompt.",
    "max_budget": "Stopped: the budget is used up.",
    "max_tokens": "The answer was cut off by its length limit; say “go on” to go on.",
    "stopped": "Stopped by a hook.",
}
