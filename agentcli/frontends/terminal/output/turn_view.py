"""Prints a session's events: finished blocks go to the transcript, unfinished work to `Activity`."""

import time
from collections import deque
from collections.abc import Sequence
from typing import Literal, Protocol

from agentcli.agent import events
from agentcli.agent.commands.command import AsDiff
from agentcli.agent.ops import Approve
from agentcli.conversation.entries import STRATEGY_NAMES, Queued
from agentcli.frontends.printable import PrintableStream, escape_hidden, printable, with_tilde
from agentcli.frontends.terminal.output.activity import Activity, ArrivingCall, PendingRetry, RunningCall, message_text
from agentcli.frontends.terminal.output.tool_views import FoldedText, claim_lines, duration, job_end, tool_view
from agentcli.frontends.terminal.text.code import diff_fragments, prepare_highlighting
from agentcli.frontends.terminal.text.fragments import Fragment, wrapped
from agentcli.frontends.terminal.text.markdown import MarkdownStream
from agentcli.llm.messages import Block
from agentcli.tools.command import BackgroundJob
from agentcli.tools.observation import call_title, diff_counts

MAX_FOLDED = 50  # shortened texts that a key can show in full; older ones are forgotten
MAX_PROMPT_LINES = 20  # of a prompt in the transcript
LONG_TURN_S = 30.0  # a longer turn ends with a line on its duration and usage
TurnEnd = Literal["done", "failed", "auth", "interrupted"]


class Printer(Protocol):
    def print(self, fragments: Sequence[Fragment]) -> None: ...

    @property
    def columns(self) -> int: ...

    @property
    def at_line_start(self) -> bool: ...


class TurnView:
    """Prints the events of a session through `printer`; `activity` has the unfinished ones."""

    def __init__(
        self,
        printer: Printer,
        *,
        is_live: bool = True,
        unfold_key: str = "Ctrl-O",
        wraps: bool = True,
        home: str = "",
        shows_claims: bool = True,
    ) -> None:
        """With `wraps`, prose is wrapped at words. Without `is_live`, text and started calls are printed at once."""
        # Paths below `home` are shortened. An empty `unfold_key` means that nothing can be unfolded.
        self._printer = printer
        self.activity = Activity()
        self._printable_stream = PrintableStream()
        self._is_live, self._wraps = is_live, wraps and is_live
        self._home, self._shows_claims, self._unfold_key = home, shows_claims, unfold_key
        self._markdown = self._new_markdown()
        self._has_text = False  # True while an answer's text arrives
        self._thinking_since = 0.0  # by `time.monotonic()`
        # By call id: the person's answers that were printed below the questions. A call's line need not repeat them.
        self._printed_answers: dict[str, Approve] = {}
        self.taken_back: list[Sequence[Block]] = []  # messages moved from the queue back into the input
        self._last_kind = ""  # the kind of the last block; empty after an empty line
        self.folded: deque[FoldedText] = deque(maxlen=MAX_FOLDED)
        self.opened_agent = ""  # the id of the subagent whose transcript is shown live
        # Output held back while a question is open, so that nothing separates its subject from its choices; else None.
        self._held: list[Fragment] | None = None

    def reset(self) -> None:
        """Begin another session: print the previous one's unfinished text, and forget its other state."""
        self.release_held_output()
        self._end_text()
        self.activity = Activity()
        self._printed_answers.clear()
        self.taken_back.clear()
        self.folded.clear()
        self._last_kind = ""
        self.opened_agent = ""

    def show(self, event: events.Event) -> None:
        """Print what an event has finished, and update the work in progress. For a subagent, print one line at most."""
        activity = self.activity
        if event.agent_id != "main":
            if line := activity.follow_subagent(event, self.format_title):
                self.print_line(*line)
            if isinstance(event, events.SubagentEnded) and event.agent_id == self.opened_agent:
                self.opened_agent = ""
            return
        if not isinstance(event, events.QueueChanged):  # the person's own messages change it
            activity.clock.last_event = time.monotonic()
        match event:
            case events.TextDelta(text):
                self._add_text(text)
            case events.ThinkingDelta(text):
                if not activity.thinking:
                    self._thinking_since = time.monotonic()
                activity.thinking += printable(text)
            case events.InputDelta(_, partial_json):
                if isinstance(activity.pending, ArrivingCall):
                    activity.pending.feed(partial_json, self._home)
            case events.BlockStarted(_, kind, _, name):
                activity.pending = ArrivingCall(name) if kind == "tool_use" else None
                if kind == "tool_use":
                    self._end_text()
            case events.TurnStarted():  # comes in each round; the clock keeps the first time
                activity.clock.started = activity.clock.started or time.monotonic()
                activity.clock.started_unix = activity.clock.started_unix or time.time()
                prepare_highlighting()  # in the background, before a reply brings code
            case events.ToolStarted(id, name, _, title):
                self._end_text()
                activity.calls[id] = RunningCall(name=name, title=self.format_title(title), started=time.monotonic())
                if not self._is_live:
                    self.print_line(f"… {title}", "muted")
            case events.OutputDelta(id, text):
                if call := activity.calls.get(id):
                    call.add_output(text)
            case events.ToolFinished():
                call = activity.end_call(event.id)
                self.print_call(event, call.title if call else event.name)
            case events.TurnEnded():
                self._end_text()
                activity.pending = None
            case events.QueueChanged(steering, follow_ups):
                self._change_queue(Queued(steering, follow_ups))
            case events.PromptProgress():
                activity.pending = event
            case events.Retry():
                activity.pending = PendingRetry(event, time.monotonic() + event.delay_s)
            case events.TurnFailed():
                self._print_failure(event)
            case events.Done():
                self._print_end(event)
            case _:
                self._print_event_line(event)

    def _print_event_line(self, event: events.Event) -> None:
        match event:
            case events.Notice(text):
                self._end_text(answer_continues=True)
                self.print_line(text, "warning")
            case events.ProviderSwitched(before, after):
                self.print_line(f"{before} → {after}", "muted")
            case events.Steered(skipped):
                titles = ", ".join(call_title(call.name, call.input) for call in skipped[:3])
                more = "…" if len(skipped) > 3 else ""
                self.print_line(f"Not run, because your message came first: {titles}{more}", "muted")
            case events.Compaction(before, after, strategy, trigger) if trigger != "manual":  # else /compact reports it
                self.print_line(f"Compacted: {before:,} → {after:,} tokens ({STRATEGY_NAMES[strategy]})", "muted")

    def _print(self, fragments: Sequence[Fragment]) -> None:
        if self._held is None:
            self._printer.print(fragments)
        else:
            self._held += fragments

    def print_question(self, fragments: Sequence[Fragment]) -> None:
        """Print a question's subject, or more of it. Until `release_held_output`, all other output is held back."""
        if self._held is None:
            self._end_text()
            self._begin_block("question")
            self._held = []
        self._printer.print(fragments)

    def release_held_output(self) -> None:
        """Print the output that was held back since `print_question`, and hold back no more."""
        held, self._held = self._held, None
        if held:
            self._end_line()
            self._print(held)

    def print_line(self, text: str, roles: str = "") -> None:
        self.print_block(self._wrapped([(roles, with_tilde(printable(text).rstrip("\n"), self._home) + "\n")]))

    def print_block(self, fragments: Sequence[Fragment], kind: str = "notice") -> None:
        """Print whole lines; an empty line separates them from a block of another kind."""
        self._end_text()
        self._begin_block(kind)
        self._print(fragments)

    def print_gap(self) -> None:
        """Print an empty line, unless the last line is empty."""
        self._begin_block("")

    def print_outcome(self, outcome: AsDiff | str) -> None:
        """Print the output of a slash command; a file's changes are printed below its name."""
        self.print_gap()
        files, note = (outcome.files, outcome.note) if isinstance(outcome, AsDiff) else ((), outcome)
        for file in files:
            counts = f"  {diff_counts(file.diff)}" if file.diff.startswith("--- ") else ""
            diff = diff_fragments(file.diff, width=self._printer.columns, max_lines=None, wraps=self._is_live)
            self.print_block([("accent", escape_hidden(file.path)), ("muted", f"{counts}\n"), *diff, ("", "\n")])
        if note:
            self.print_line(note)
        self.print_gap()

    def print_markdown(self, text: str) -> None:
        self._end_text()
        self._add_text(text)
        self._end_text()

    def print_job_end(self, job: BackgroundJob) -> bool:
        """Print a line about a job that has ended; return False while an answer or a question is on the screen."""
        if self._has_text or self.activity.thinking or self.activity.clock.questions:
            return False
        if line := job_end(job):
            self.print_block(self._wrapped(line, hang=2))
        return True

    def begin_prompt(self, text: str) -> None:
        """Begin a prompt that was just typed, and print it unless the terminal has echoed it (a plain one)."""
        self._end_text()
        self._markdown = self._new_markdown()
        if self._is_live:
            self.print_prompt(text)
        else:
            self._last_kind = "prompt"

    def print_prompt(self, text: str) -> None:
        lines = printable(text).strip("\n").split("\n")
        shown = "\n".join([lines[0], *(f"  {line}" for line in lines[1:MAX_PROMPT_LINES])])
        self.print_block(self._wrapped([("prompt said", "› "), ("said", shown), ("", "\n")], hang=2), "prompt")
        if len(lines) > MAX_PROMPT_LINES:
            self._print([("muted", f"  … {len(lines) - MAX_PROMPT_LINES:,} more lines\n")])

    def print_answer(self, answer: Approve, line: Sequence[Fragment]) -> None:
        """Print a line on the person's answer below the question; the call's line need not repeat it."""
        if line:  # empty if the call's line will show the answer
            self._printed_answers[answer.id] = answer
            self.print_question(line)  # at once, like the question
            if not self._held:  # the call's line follows without a gap; held output would be printed between them
                self._last_kind = "calls"

    def print_call(self, event: events.ToolFinished, title: str) -> None:
        """Print a finished call, unless the line about its answer says everything; keep a cut text in `folded`."""
        self._end_text()
        answer, columns, key = self._printed_answers.get(event.id), self._printer.columns, self._unfold_key
        was_asked = answer is not None
        view = tool_view(event, title, columns=columns, was_asked=was_asked, is_live=self._is_live, unfold_key=key)
        if view.folded is not None:
            self.folded.append(view.folded)
        # True if an allowed call has succeeded, or a denied one was not run.
        is_as_decided = answer is not None and answer.allowed != event.result.is_error
        if is_as_decided and event.answer.startswith(("declined", "discarded", "applied")):
            return
        if self._last_kind == "question":  # the call's line shows the answer
            self._last_kind = "calls"
        self.print_block(view.fragments, "calls")

    def _begin_block(self, kind: str) -> None:
        """Print an empty line between blocks of different kinds, and before each prompt."""
        if self._last_kind and (kind != self._last_kind or kind == "prompt"):
            self._print([("", "\n")])
        self._last_kind = kind

    def _wrapped(self, fragments: Sequence[Fragment], *, hang: int | None = None) -> Sequence[Fragment]:
        return wrapped(fragments, self._printer.columns, hang=hang) if self._wraps else fragments

    def format_title(self, title: str) -> str:
        return escape_hidden(with_tilde(title, self._home))

    def _add_text(self, text: str) -> None:
        self._end_thinking()
        if not self._has_text:
            self._begin_block("answer")
            self._has_text = True
        text = self._printable_stream.feed(text)
        self._print(self._markdown.feed(text) if self._is_live else [("", text)])
        self.activity.answer = self._markdown

    def _end_thinking(self) -> None:
        """Print a line about the thoughts that have ended; their text can be unfolded."""
        thought = self.activity.thinking
        if not thought:
            return
        self.activity.thinking = ""
        took = duration((time.monotonic() - self._thinking_since) * 1000)
        how_long = f" for {took}" if took else ""
        key = f" ({self._unfold_key})" if self._unfold_key else ""
        self.folded.append(FoldedText("Thinking", thought))
        self._begin_block("calls")  # thoughts and calls follow each other without an empty line
        self._print([("muted", f"∴ Thought{how_long} · {len(thought.split()):,} words{key}\n")])

    def _end_text(self, *, answer_continues: bool = False) -> None:
        """Print the rest of the text so far; whatever is printed next begins on a new line.

        If the answer continues later, its Markdown stays open, such as a block of code.
        """
        self._end_thinking()
        if self._has_text:
            self._has_text = False
            rest = self._printable_stream.close()
            self._print([*self._markdown.feed(rest), *self._markdown.close()] if self._is_live else [("", rest)])
            self.activity.answer = None
            if not answer_continues:
                self._markdown = self._new_markdown()
        self._end_line()

    def _end_line(self) -> None:
        is_at_start = self._held[-1][1].endswith("\n") if self._held else self._printer.at_line_start
        if not is_at_start:
            self._print([("", "\n")])

    def _new_markdown(self) -> MarkdownStream:
        return MarkdownStream(width=lambda: self._printer.columns, wraps=self._wraps)

    def _change_queue(self, queue: Queued) -> None:
        """Print the messages that have left the queue because the model has received them."""
        waiting = [*queue.steering, *queue.follow_ups]
        for content in self.activity.queued:
            if content in waiting:  # it still waits; of equal messages, each counts once
                waiting.remove(content)
            elif content in self.taken_back:
                self.taken_back.remove(content)
            else:
                self.print_prompt(message_text(content))
        self.activity.queue = queue

    def _print_failure(self, event: events.TurnFailed) -> None:
        self._end_text(answer_continues=event.broke_off)
        self.activity.end_turn()
        self.print_line(f"✗ {event.error}", "error")
        if event.broke_off:
            self.print_line("The answer broke off. Press Enter in the empty input to continue it.", "warning")
        self.print_gap()

    def _print_end(self, done: events.Done) -> None:
        """Print how a turn ended: an unusual reason, the claims in its answer, the usage of a long one."""
        for id in list(self.activity.clock.questions):
            self.activity.close_question(id)
        took = time.monotonic() - (self.activity.clock.started or time.monotonic())
        self._end_text()
        self.activity.end_turn()
        if why := _ENDINGS.get(done.reason):
            self.print_line(why, "warning")
        if self._shows_claims and done.claims:
            self.print_block([*claim_lines(done.claims, self._printer.columns), ("", "\n")])
        if took >= LONG_TURN_S:
            tokens = f"{done.usage.prompt_tokens:,} tokens in, {done.usage.output_tokens:,} out"
            cost = f" · ${done.cost_usd:.4f}" if done.cost_usd else ""
            self.print_line(f"{duration(took * 1000)} · {tokens}{cost}", "muted")
        self.print_gap()


_ENDINGS = {
    "interrupted": "Interrupted. The conversation so far is kept.",
    "declined": "Stopped. Say what to do instead.",
    "max_turns": "Stopped at the limit of requests for one prompt (limits.max_turns).",
    "max_budget": "Stopped: the budget is used up.",
    "max_tokens": "The answer reached its length limit. Say “continue” to get the rest.",
    "stopped": "Stopped by a hook.",
}
