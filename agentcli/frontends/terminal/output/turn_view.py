"""Turns events into print: finished blocks go to the transcript, the rest is kept in `Live`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from agentcli.agent import events
from agentcli.agent.commands.command import AsDiff
from agentcli.agent.ops import OWN_CALL
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Assistant, Result, Unreadable, User
from agentcli.conversation.evidence import Claim
from agentcli.frontends.printable import PrintableStream, exposed, printable, with_tilde
from agentcli.frontends.terminal.markdown.stream import MarkdownStream
from agentcli.frontends.terminal.output.live import LONGEST_TAIL, Live, RunningCall, message_text
from agentcli.frontends.terminal.output.tool_views import FoldedText, duration, tool_view
from agentcli.frontends.terminal.text.diff import diff_fragments
from agentcli.frontends.terminal.text.fragments import Fragment
from agentcli.frontends.terminal.text.highlight import warm_up
from agentcli.frontends.terminal.text.wrapping import wrapped
from agentcli.llm.messages import Block, Text, ToolResult, ToolUse
from agentcli.tools.summary import call_title, diff_counts

Queue = tuple[tuple[Block, ...], ...]

MOST_ENTRIES = 30  # of a stored conversation that are shown
MOST_FOLDED = 50
MOST_CLAIMS = 5
PROMPT_LINES = 20  # of a long message that waited, or was said earlier
LONG_TURN_S = 30.0  # after which the end says how long it took and what it used


class Printer(Protocol):
    """Adds text to the end of the screen."""

    def print(self, fragments: Sequence[Fragment]) -> None: ...

    @property
    def columns(self) -> int: ...

    @property
    def at_line_start(self) -> bool: ...


class TurnView:
    """Shows a session's events through `printer`; `live` has those under way. With `wraps` prose is broken at words."""

    def __init__(
        self,
        printer: Printer,
        *,
        is_live: bool = True,
        interrupt_key: str = "Esc",
        unfold_key: str = "Ctrl-O",
        wraps: bool = True,
        home: str = "",
        shows_claims: bool = True,
    ) -> None:
        self._printer = printer
        self._print = printer.print
        self.live = Live(interrupt_key=interrupt_key)
        self._clean = PrintableStream()
        self._is_live = is_live
        self._wraps = wraps and is_live
        self._home = home
        self._shows_claims = shows_claims
        self._unfold_key = unfold_key
        self._markdown = self._new_stream()
        self._has_text = False
        self._thinking_since = 0.0
        self._previewed: set[str] = set()
        self._taken_back: list[Sequence[Block]] = []
        self._last_kind = ""  # of the block printed last; empty after an empty line
        self.folded: deque[FoldedText] = deque(maxlen=MOST_FOLDED)

    def show(self, event: events.Event) -> None:
        if event.agent_id != "main":
            if line := self.live.follow_subagent(event, self.title):
                self.line(*line)
            return
        match event:
            case events.TextDelta(text):
                self._text(text)
            case events.ThinkingDelta(text):
                self._thinking_since = self._thinking_since if self.live.thinking else time.monotonic()
                self.live.waiting = ""
                self.live.thinking += printable(text)
            case events.TurnStarted(number):
                self.live.turn_since = self.live.turn_since or time.monotonic()
                if number == 1:
                    warm_up()
            case events.ToolStarted(id, name, _, title):
                self._end_text()
                self.live.calls[id] = RunningCall(name, self.title(title), time.monotonic())
                if not self._is_live:
                    self.line(f"… {title}", "muted")
            case events.OutputDelta(id, text):
                if call := self.live.calls.get(id):
                    call.tail = (call.tail + printable(text))[-LONGEST_TAIL:]
            case events.ToolFinished():
                call = self.live.calls.pop(event.id, None)
                self._end_text()
                self.call(event, call.title if call else event.name)
            case events.TurnEnded():
                self._end_text()
            case events.QueueChanged(steering, follow_ups):
                self._queue_changed(steering, follow_ups)
            case events.Retry(number, delay_s, error):
                self.live.waiting = f"{printable(error)} (try {number + 1})"
                self.live.waiting_until = time.monotonic() + delay_s
            case events.TurnFailed():
                self._failed(event)
            case events.Done():
                self._done(event)
            case _:
                self._note(event)

    def _note(self, event: events.Event) -> None:
        match event:
            case events.Notice(text):
                self.line(text, "warning")
            case events.ProviderSwitched(before, after):
                self.line(f"{before} → {after}", "muted")
            case events.Steered(skipped):
                titles = ", ".join(call_title(call.name, call.input) for call in skipped[:3])
                more = "…" if len(skipped) > 3 else ""
                self.line(f"Not run, because your message came first: {titles}{more}", "muted")
            case events.Compaction(before, after, strategy, trigger) if trigger != "manual":  # else its command says so
                self.line(f"Compacted ({strategy}): {before:,} → {after:,} tokens", "muted")
            case _:
                pass

    def begin_anew(self) -> None:
        """Begin another session: print the unfinished text of the one before, forget the rest."""
        self._end_text()
        self._previewed.clear()
        self._taken_back.clear()
        self.folded.clear()
        self._last_kind = ""

    # Printing

    def line(self, text: str, roles: str = "") -> None:
        """Text on lines of its own."""
        self.block(self._fitted([(roles, with_tilde(printable(text).rstrip("\n"), self._home) + "\n")]))

    def block(self, fragments: Sequence[Fragment], kind: str = "note") -> None:
        self._end_text()
        self._begin(kind)
        self._print(fragments)

    def outcome(self, outcome: AsDiff | str) -> None:
        """The output of a slash command; changes of a file stand below its name."""
        self.gap()
        files, note = (outcome.files, outcome.note) if isinstance(outcome, AsDiff) else ((), outcome)
        for file in files:
            counts = f"  {diff_counts(file.diff)}" if file.diff.startswith("--- ") else ""
            diff = diff_fragments(file.diff, width=self._printer.columns, most_lines=None)
            self.block([("accent", exposed(file.path)), ("muted", f"{counts}\n"), *diff, ("", "\n")])
        if note:
            self.line(note)
        self.gap()

    def gap(self) -> None:
        """An empty line, where there is none yet."""
        self._begin("")

    def markdown(self, text: str) -> None:
        """A whole Markdown text."""
        self._end_text()
        self._text(text)
        self._end_text()

    def typed(self, text: str) -> None:
        """A prompt that was typed just now."""
        self._end_text()
        self._markdown = self._new_stream()
        if self._is_live:
            self.prompt(text)
        else:
            self._last_kind = "prompt"

    def prompt(self, text: str) -> None:
        """A prompt."""
        lines = printable(text).strip("\n").split("\n")
        said = "\n".join([lines[0], *(f"  {line}" for line in lines[1:PROMPT_LINES])])
        self.block(self._fitted([("prompt", "› "), ("said", said + "\n")], hang=2), "prompt")
        if len(lines) > PROMPT_LINES:
            self._print([("muted", f"  … {len(lines) - PROMPT_LINES:,} more lines\n")])

    def _begin(self, kind: str) -> None:
        """Part blocks of different kinds by an empty line; calls and notes stand close together."""
        if self._last_kind and (kind != self._last_kind or kind == "prompt"):
            self._print([("", "\n")])
        self._last_kind = kind

    def _fitted(self, fragments: Sequence[Fragment], *, hang: int | None = None) -> Sequence[Fragment]:
        return wrapped(fragments, self._printer.columns, hang=hang) if self._wraps else fragments

    def will_take_back(self, message: Sequence[Block]) -> None:
        """Note that this message leaves the queue for the input, not for the model."""
        self._taken_back.append(message)

    def was_previewed(self, call_id: str) -> None:
        """Note that the diff of this call, or more, is on the screen already."""
        self._previewed.add(call_id)

    def call(self, event: events.ToolFinished, title: str) -> None:
        """A finished call, with the whole of its output to be unfolded."""
        shown = event.id in self._previewed
        view = tool_view(event, title, columns=self._printer.columns, diff_was_shown=shown, unfold_key=self._unfold_key)
        self._previewed.discard(event.id)
        if view.folded is not None:
            self.folded.append(view.folded)
        if self._last_kind == "question":  # whose answer the line tells
            self._last_kind = "calls"
        self.block(view.fragments, "calls")

    def title(self, title: str) -> str:
        """A call's title as it is shown."""
        return exposed(with_tilde(title, self._home))

    # Events

    def _text(self, text: str) -> None:
        self._end_thinking()
        self.live.waiting = ""
        if not self._has_text:
            self._begin("answer")
            self._has_text = True
        text = self._clean.feed(text)
        self._print(self._markdown.feed(text) if self._is_live else [("", text)])
        self.live.answer = self._markdown

    def _end_thinking(self) -> None:
        thought = self.live.thinking
        if not thought:
            return
        self.live.thinking = ""
        took = duration((time.monotonic() - self._thinking_since) * 1000)
        how_long, rest = f" for {took}" if took else "", f" ({self._unfold_key})" if self._unfold_key else ""
        self.folded.append(FoldedText("Thinking", thought))
        self._begin("calls")
        self._print([("muted", f"∴ Thought{how_long} · {len(thought.split()):,} words{rest}\n")])

    def _end_text(self) -> None:
        self._end_thinking()
        if self._has_text:
            self._has_text = False
            rest = self._clean.close()
            self._print([*self._markdown.feed(rest), *self._markdown.close()] if self._is_live else [("", rest)])
            self._markdown = self._new_stream()
            self.live.answer = None
        if not self._printer.at_line_start:
            self._print([("", "\n")])

    def _new_stream(self) -> MarkdownStream:
        return MarkdownStream(width=lambda: self._printer.columns, wraps=self._wraps)

    def _queue_changed(self, steering: Queue, follow_ups: Queue) -> None:
        """Messages that have left the queue for the model are shown where they reach it."""
        left = [*steering, *follow_ups]
        for content in self.live.queued:
            if content in left:
                left.remove(content)
            elif content in self._taken_back:
                self._taken_back.remove(content)
            else:
                self.prompt(message_text(content))
        self.live.steering, self.live.follow_ups = steering, follow_ups

    def _end_turn(self) -> None:
        self._end_text()
        live = self.live
        live.asked.clear()
        live.turn_since = None
        live.waiting = ""
        live.calls = {id: call for id, call in live.calls.items() if id.startswith(OWN_CALL) or id in live.agents}

    def _failed(self, event: events.TurnFailed) -> None:
        answer = self._markdown if event.broke_off and self._has_text else None
        self._end_turn()
        self._markdown = answer or self._markdown  # what goes on stands within the same block
        self.line(f"✗ {event.error}", "error")
        if event.broke_off:
            self.line("The answer broke off; Enter in the empty input goes on where it stopped.", "warning")
        self.gap()

    def _done(self, done: events.Done) -> None:
        for id in list(self.live.asked):
            self.live.answered(id)
        took = time.monotonic() - (self.live.turn_since or time.monotonic())
        self._end_turn()
        if why := _ENDINGS.get(done.reason):
            self.line(why, "warning")
        if self._shows_claims:
            self._claims(done.claims)
        if took >= LONG_TURN_S:
            tokens = f"{done.usage.prompt_tokens:,} tokens in, {done.usage.output_tokens:,} out"
            cost = f" · ${done.cost_usd:.4f}" if done.cost_usd else ""
            self.line(f"{duration(took * 1000)} · {tokens}{cost}", "muted")
        self.gap()

    def _claims(self, claims: Sequence[Claim]) -> None:
        """A quiet line for each claim."""
        worst: dict[str, str] = {}  # a sentence with several claims is as good as the worst
        for claim in claims:
            text = " ".join(claim.text.split())
            worst[text] = max(worst.get(text, "verified"), claim.verdict, key=list(_CLAIM_MARKS).index)
        for text, verdict in list(worst.items())[:MOST_CLAIMS]:
            mark, role, why = _CLAIM_MARKS[verdict]
            room = max(20, self._printer.columns - len(why) - 4)
            shown = text if len(text) <= room else f"{text[: room - 1]}…"
            self.block([(role, f"{mark} "), ("muted", f"{exposed(shown)}{why}\n")])
        if len(worst) > MOST_CLAIMS:
            self.line(f"+{len(worst) - MOST_CLAIMS} more", "muted")


def replay(conversation: Conversation, view: TurnView) -> None:
    """Show the newest part of a stored conversation."""
    shown = [e for e in conversation.path if isinstance(e.body, User | Assistant | Result | Unreadable)]
    shown = [e for e in shown if not (isinstance(e.body, User) and e.body.is_reminder)]
    if len(shown) > MOST_ENTRIES:
        view.line(f"… {len(shown) - MOST_ENTRIES:,} earlier entries", "muted")
    calls: dict[str, ToolUse] = {}
    for entry in shown[-MOST_ENTRIES:]:
        match entry.body:
            case User(content):
                view.prompt(message_text(content))
            case Assistant(content):
                calls |= {block.id: block for block in content if isinstance(block, ToolUse)}
                for block in content:
                    if isinstance(block, Text) and block.text.strip():
                        view.markdown(block.text)
            case Result(result, name) as ended:
                call = calls.get(result.tool_use_id)
                facts = (ended.duration_ms, ended.summary, ended.structured, ended.error_kind)
                finished = events.ToolFinished(result.tool_use_id, name, result, *facts, answer=ended.answer)
                view.call(finished, view.title(call_title(name, call.input if call else {})))
            case Unreadable(error):
                view.line(f"[{error}]", "warning")
            case _:
                pass
    for id in conversation.open_calls:  # the program ended while they ran
        if call := calls.get(id):
            outcome = "cut off; its outcome is unknown"
            cut = events.ToolFinished(id, call.name, ToolResult(id, "", is_error=True), 0.0, outcome)
            view.call(cut, view.title(call_title(call.name, call.input)))
    if shown:
        view.gap()


_CLAIM_MARKS = {
    "verified": ("✓", "ok", ""),
    "unverified": ("?", "warning", " - not verified"),
    "refuted": ("✗", "error", " - the log says otherwise"),
}
_ENDINGS = {
    "interrupted": "Interrupted; what was said is kept.",
    "declined": "Stopped: say what to do instead.",
    "max_turns": "Stopped at the limit of requests for one prompt.",
    "max_budget": "Stopped: the budget is used up.",
    "max_tokens": "The answer was cut off by its length limit; say “go on” to go on.",
    "stopped": "Stopped by a hook.",
}
