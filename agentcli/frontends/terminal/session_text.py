"""Searches a session's text, lays it out for the pager, and prints its end again when the session is reopened."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from agentcli.agent import events
from agentcli.agent.commands.sessions import age
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Assistant, ContextNote, Entry, Result, Unreadable, User
from agentcli.frontends.printable import printable
from agentcli.frontends.terminal.input.prompt import Picker
from agentcli.frontends.terminal.output.activity import message_text
from agentcli.frontends.terminal.output.turn_view import TurnView
from agentcli.llm.messages import Text, ToolResult, ToolUse
from agentcli.tools.observation import call_title

MAX_ENTRIES = 30  # of a stored conversation, printed when it is reopened
MAX_FOUND = 200  # parts that a search returns
MAX_GAP = 8  # characters between two letters of a word that was typed in part
CHARS_BEFORE = 12  # of an excerpt, before the match
MAX_EXCERPT_CHARS = 60
_REPORT = "<system-reminder>"  # begins the report of a background subagent, which is stored as a prompt
# The person's own shell command with its output. The session stores it as a reminder or, if the model does not get it,
# as a note.
_OWN_COMMAND = re.compile(r"<bash-input>(.*)</bash-input>\n<bash-output>(.*)</bash-output>", re.DOTALL)


class TranscriptPart(Struct, frozen=True, kw_only=True):
    """A prompt, an answer, a call or the person's command, with its output; `label` says which."""

    label: str
    text: str
    time: float


class FoundPart(Struct, frozen=True, order=True):
    """A matching part. `part_index` 0 is the newest, `position` is the match's offset; the lowest `rank` is best."""

    rank: int
    part_index: int
    position: int


class SessionText:
    """The whole text of a session, including text before compactions and on abandoned branches."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._parts = list(_parts(entries))[::-1]
        self._lowered = [part.text.lower() for part in self._parts]
        self._found: list[FoundPart] = []

    def search(self, query: str) -> list[tuple[str, str]]:
        """Return a label and a detail for each part that has all words of a query, best and newest first.

        If no part has them, the letters of each word may be spread over a longer one, as `cnfg` over `config`.
        Without words, all prompts are returned.
        """
        if words := query.lower().split():
            self._found = sorted([*self._find_words(words)] or self._find_letters(words))[:MAX_FOUND]
        else:
            prompts = [index for index, part in enumerate(self._parts) if part.label == "prompt"]
            self._found = [FoundPart(rank=0, part_index=index, position=0) for index in prompts]
        return [self._as_option(found) for found in self._found]

    def page_at(self, choice: int) -> tuple[str, int]:
        """Return the session's text, and the line number of a result of the newest search, given by its index."""
        found = self._found[choice]
        texts = [printable(part.text).rstrip("\n") + "\n\n" for part in reversed(self._parts)]  # oldest first again
        before = printable(self._parts[found.part_index].text[: found.position])
        above = [*texts[: len(texts) - 1 - found.part_index], before]
        return "".join(texts), "".join(above).count("\n") + 1

    def _find_words(self, words: Sequence[str]) -> Iterator[FoundPart]:
        phrase = " ".join(words)
        for index, text in enumerate(self._lowered):
            if phrase in text:
                yield FoundPart(rank=0, part_index=index, position=text.find(phrase))
            elif all(word in text for word in words):
                yield FoundPart(rank=1, part_index=index, position=text.find(words[0]))

    def _find_letters(self, words: Sequence[str]) -> Iterator[FoundPart]:
        patterns = [_letters_in_order(word) for word in words]
        for index, text in enumerate(self._lowered):
            matches = [match for pattern in patterns if (match := pattern.search(text))]
            if len(matches) == len(words):
                rank = sum(len(match.group()) for match in matches)  # letters that are close together fit best
                yield FoundPart(rank=rank, part_index=index, position=matches[0].start())

    def _as_option(self, found: FoundPart) -> tuple[str, str]:
        """Return the text around a match, and its part's label and age."""
        part = self._parts[found.part_index]
        # A match near the part's beginning is shown with all of the beginning.
        start = found.position - CHARS_BEFORE if found.position > MAX_EXCERPT_CHARS // 2 else 0
        excerpt = " ".join(part.text[start : start + 2 * MAX_EXCERPT_CHARS].split())
        label = f"…{excerpt}" if start else excerpt
        return label[:MAX_EXCERPT_CHARS], f"{part.label} · {age(time.time() - part.time)}"


class SearchList(Picker):
    """A list of search results for the typed text. `search` runs once per frame, because keys come in bursts."""

    def __init__(self, title: str, search: Callable[[str], Sequence[tuple[str, str]]], query: str) -> None:
        super().__init__(title, ())
        self._search, self._query = search, printable(query)
        self._searched: str | None = None  # the query whose results are the options

    @property
    def matching_indices(self) -> list[int]:
        if self._query != self._searched:
            self._searched = self._query
            self._options = [(printable(label), printable(detail)) for label, detail in self._search(self._query)]
        return [*range(len(self._options))]


def _parts(entries: Iterable[Entry]) -> Iterator[TranscriptPart]:
    """Yield the texts that can be searched, each with a label: prompts, own commands, answers, results, reports."""
    calls: dict[str, ToolUse] = {}
    for entry in entries:
        match entry.body:
            case User(content, is_reminder=False) as report if report.text.startswith(_REPORT):
                text = message_text(content).removeprefix(_REPORT).removesuffix("</system-reminder>")
                yield TranscriptPart(label="report", text=text, time=entry.time)
            case User(content, is_reminder=False):
                yield TranscriptPart(label="prompt", text=f"› {message_text(content)}", time=entry.time)
            case User((Text(text),)) | ContextNote(text) if own := _OWN_COMMAND.fullmatch(text):
                yield TranscriptPart(label="your command", text=f"› !{own[1]}\n{own[2]}", time=entry.time)
            case Assistant(content=content):
                calls |= {block.id: block for block in content if isinstance(block, ToolUse)}
                if (text := "".join(block.text for block in content if isinstance(block, Text))).strip():
                    yield TranscriptPart(label="answer", text=text, time=entry.time)
            case Result(result=result, name=name, summary=summary):
                call = calls.get(result.tool_use_id)
                title = call_title(name, call.input if call else {})
                head = f"{'✗' if result.is_error else '✓'} {' · '.join(part for part in (title, summary) if part)}"
                yield TranscriptPart(label=title, text=f"{head}\n{result.text}", time=entry.time)


def _letters_in_order(word: str) -> re.Pattern[str]:
    """Match the letters of a word in their order within a longer word; each letter is taken where it comes first."""
    first, *others = map(re.escape, word)
    return re.compile(first + "".join(rf"[^\s{letter}]{{0,{MAX_GAP}}}{letter}" for letter in others))


def replay(conversation: Conversation, view: TurnView) -> None:
    """Print the newest `MAX_ENTRIES` of a stored conversation, and its calls that have no result."""
    bodies = [e.body for e in conversation.path if isinstance(e.body, User | Assistant | Result | Unreadable)]
    bodies = [
        body for body in bodies if not (isinstance(body, User) and (body.is_reminder or body.text.startswith(_REPORT)))
    ]
    if len(bodies) > MAX_ENTRIES:
        view.print_line(f"… {len(bodies) - MAX_ENTRIES:,} earlier entries", "muted")
    calls: dict[str, ToolUse] = {}
    for body in bodies[-MAX_ENTRIES:]:
        match body:
            case User(content):
                view.print_prompt(message_text(content))
            case Assistant(content=content):
                calls |= {block.id: block for block in content if isinstance(block, ToolUse)}
                for block in content:
                    if isinstance(block, Text) and block.text.strip():
                        view.print_markdown(block.text)
            case Result(result=result, name=name):
                call = calls.get(result.tool_use_id)
                details = (body.duration_ms, body.summary, body.structured, body.error_kind)
                finished = events.ToolFinished(result.tool_use_id, name, result, *details, answer=body.answer)
                view.print_call(finished, view.format_title(call_title(name, call.input if call else {})))
            case Unreadable(error):
                view.print_line(f"[{error}]", "warning")
    for id in conversation.open_calls:  # the program ended before these calls did
        if call := calls.get(id):  # else it is above the printed entries
            result, end = ToolResult(id, "", is_error=True), "cut off; it may have partially run"
            if call in conversation.unstarted_calls:
                end = "not run: it waited for your answer"
            elif id in conversation.dry_runs:
                end = "dry run discarded: nothing was applied"
            cut = events.ToolFinished(id, call.name, result, 0.0, end)
            view.print_call(cut, view.format_title(call_title(call.name, call.input)))
    if bodies:
        view.print_gap()
