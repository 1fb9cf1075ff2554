"""Publishes the events of a call and makes its result, with secrets masked."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from agentcli.agent.events import CallError, Emit, OutputDelta, ToolFinished, ToolStarted
from agentcli.agent.interfaces import CallRecord
from agentcli.conversation.entries import FileChange, Result
from agentcli.errors import Declined, ToolError
from agentcli.llm.messages import Text, ToolResult, ToolUse
from agentcli.tools.command import format_counts
from agentcli.tools.observation import MAX_INLINE_BYTES, call_title, cut_middle, format_value
from agentcli.tools.tool import LazyResult, ToolOutput

if TYPE_CHECKING:
    from agentcli.safety.secrets.masking import Masker, StreamMask
    from agentcli.safety.secrets.rules import Secret

INTERRUPTED = "Not run: the user interrupted this turn."
_MAX_INLINE_S = 0.001  # what takes less does not delay the event loop, and a thread would cost a tenth of that
OMITTED = {"omitted": "larger than 1 MB"}


class Report:
    """The report on one call: its output, result and events. With `gives_all`, the structured data is complete."""

    finished: ToolFinished  # set, like `result`, once the call has ended

    def __init__(self, use: ToolUse, emit: Emit, mask: Mask, *, gives_all: bool = False) -> None:
        self.use = use
        self.emit = emit
        self.mask = mask
        self.result: Result | None = None
        self.record: CallRecord | None = None  # for hooks; None until they have let the call pass
        self.shown_output: list[str] = []  # the output so far, masked
        self.remarks: list[str] = []  # lines for the model at the end of the result
        self.changes = ""  # "2 files edited, 1 deleted", if the call could change any file
        self.answer = self.level = ""  # a description of the person's answer, and the output level
        self.is_running = False  # the tool has begun, so it may have changed something
        self.is_dry_run = False  # a dry run is under way, so an interrupt leaves the workspace unchanged
        self.retry_count, self.last_error = 0, ""
        self.timeout_text: Callable[[], str] = lambda: ""  # the error, once the caller's time limit ends the call
        self._gives_all = gives_all
        self._stream: StreamMask | None = None
        self._started = time.perf_counter()

    @contextlib.contextmanager
    def excluded_from_duration(self) -> Iterator[None]:
        """Exclude the time in the body, where the call waits for the person, from the call's duration."""
        since = time.perf_counter()
        try:
            yield
        finally:
            self._started += time.perf_counter() - since

    def start(self) -> None:
        use, self._started = self.use, time.perf_counter()  # the call may have waited for others of the same reply
        self.emit(ToolStarted(use.id, use.name, use.input, call_title(use.name, use.input)))

    def show(self, text: str) -> None:
        """Publish output of a running call; text that may be the beginning of a secret is held back until its end."""
        self._stream = self._stream or self.mask.stream()
        self._emit_output(self._stream.feed(text))

    def _emit_output(self, text: str) -> None:
        if text:
            self.shown_output.append(text)
            self.emit(OutputDelta(self.use.id, text))

    def _end_output(self) -> None:
        if self._stream is not None:
            self._emit_output(self._stream.close())
            self._stream = None

    def finish(self, output: ToolOutput, error: CallError | None = None) -> None:
        """Make the result of the call, with secrets masked, and publish `ToolFinished`."""
        self._end_output()
        if self._gives_all:  # programs get even a structured result of over 1 MB
            output = output.whole()
        elif isinstance(output.structured, LazyResult):
            output = msgspec.structs.replace(output, structured=OMITTED)
        if self.changes:
            self.remarks.append(f"[changes to the workspace: {self.changes}]")
            output = msgspec.structs.replace(output, summary=f"{output.summary}; {self.changes}".removeprefix("; "))
        output = self.mask.output(output, tool=self.use.name)
        if error is None and output.error_kind is not None:  # the tool returned an error with a result of its own
            parts = ToolResult(self.use.id, output.content or "").parts
            text = "\n".join(part.text for part in parts if isinstance(part, Text))
            partial, _, why = text.rpartition("\n")  # bash ends its output with a line such as "[ended after 30 s; …]"
            if not (why.startswith("[") and why.endswith("]")):
                partial, why = "", text
            failure = ToolError(why.strip("[]"), kind=output.error_kind)
            error = self._call_error(failure)
            if isinstance(output.content, str):  # a result with images stays as it is
                output = msgspec.structs.replace(output, content=_with_partial(failure, partial))
        if error is not None:
            error = msgspec.structs.replace(error, message=self.mask.text(error.message))
        content = output.content or ""
        if remark := self.mask.text("\n".join(self.remarks)):
            content = f"{content}\n{remark}" if isinstance(content, str) else (*content, Text(remark))
        record, kind = self.record, error.kind if error else ""
        common: dict[str, Any] = {
            "name": self.use.name,
            "result": ToolResult(self.use.id, content, output.is_error),
            "summary": output.summary,
            "duration_ms": round(max(0.0, time.perf_counter() - self._started) * 1000, 1),
            "error_kind": kind,
            "retry_count": self.retry_count,
            "last_error": self.last_error,
            "answer": self.answer,
        }
        # The log leaves out a very large structured result, because the content or a data file has it.
        is_large = len(msgspec.json.encode(output.structured, enc_hook=str)) > MAX_INLINE_BYTES
        self.result = Result(
            **common,
            structured=OMITTED if is_large else output.structured,
            tool_version=record.version if record else "1",
            caller=record.caller if record else "main",
            mode=record.mode if record else "",
            error_code=error.code if error and error.code != kind else "",  # most codes only repeat the kind
            output_level=self.level,
        )
        self.finished = ToolFinished(id=self.use.id, structured=output.structured, error=error, **common)
        self.emit(self.finished)

    def _call_error(self, error: ToolError) -> CallError:
        return CallError(error.kind, error.code, str(error), self.use.id, error.is_retryable)

    def fail(self, error: ToolError) -> None:
        """Make the result of a failed call: the error, below the output so far at the level `brief`."""
        self._end_output()
        partial = error.partial
        if not partial and error.kind == "timeout":  # the tool was stopped before it could return its output
            partial = "".join(self.shown_output)
        content = _with_partial(error, format_value(partial.strip(), "brief"))
        summary = str(error)
        if isinstance(error, Declined):
            self.answer = summary = error.answer
        first_line = summary.split("\n", 1)[0][:200]
        self.finish(ToolOutput(content, is_error=True, summary=first_line), self._call_error(error))

    def interrupt(self) -> None:
        """Make the result of a cancelled call: a timeout if the caller's time limit cancelled it."""
        if why := self.timeout_text():
            self.fail(ToolError(why, kind="timeout"))
            return
        self._end_output()
        effects = "it was a dry run, and nothing was applied" if self.is_dry_run else "it may have partially run"
        partial = f"{cut_middle(''.join(self.shown_output))}\n[interrupted by the user; {effects}]".lstrip()
        self.finish(ToolOutput(partial if self.is_running else INTERRUPTED, is_error=True, summary="interrupted"))


def count_recorded(changes: Iterable[FileChange]) -> str:
    """Count recorded changes, such as `2 files edited, 1 deleted`; folders are named only if no file changed."""
    counts, folders = Counter[str](), dict[str, None]()
    contents = {outcome: Counter[str]() for outcome in ("created", "deleted", "edited")}  # the files' content ids
    for change in changes:
        outcome = "created" if change.before is None else "deleted" if change.after is None else "edited"
        state = change.after or change.before
        assert state is not None, "a path that never existed has not changed"
        if state.kind == "folder":
            folders[f"folder {outcome}"] = None
        else:
            counts[outcome] += 1
            contents[outcome][state.content if state.size else ""] += 1
    del contents["created"][""]  # empty files, and files whose contents are not stored
    # A created file with the content of a deleted one is that file under a new name.
    renamed = (contents["created"] & contents["deleted"]).total()
    counts.update(renamed=renamed, created=-renamed, deleted=-renamed)
    return format_counts(counts) or ", ".join(folders)


def _with_partial(error: ToolError, output: str) -> str:
    """Return the error as the model reads it, below the output that the call produced before it failed."""
    return f"{output.rstrip()}\n[{error.line}]" if output.strip() else error.line


class Mask:
    """Masks the secrets in a session's outputs. Structured results of the tools in `keeps_structured` stay unmasked."""

    def __init__(self, make: Callable[[frozenset[str]], Masker], *, keeps_structured: Collection[str] = ()) -> None:
        self._make = make  # called at the first output, because importing the masker takes 20 ms
        self._values: frozenset[str] = frozenset()  # known secrets, such as those in .env files
        self._masker: Masker | None = None  # for `_values`; None until it is needed
        self._find_s = math.inf  # how long the last search for secrets took
        self._lock = threading.Lock()  # because a thread masks exports
        self.keeps_structured = keeps_structured

    @property
    def _current_masker(self) -> Masker:
        with self._lock:
            if self._masker is None:
                self._masker = self._make(self._values)
            return self._masker

    async def load_secrets(self, find: Callable[[], frozenset[str]]) -> None:
        """Mask from now on the secrets that `find` returns; it runs in a thread unless its last run was very short."""

        def find_timed() -> frozenset[str]:
            started = time.perf_counter()
            values = find()
            self._find_s = time.perf_counter() - started
            return values

        self.set_secrets(find_timed() if self._find_s < _MAX_INLINE_S else await asyncio.to_thread(find_timed))

    def set_secrets(self, values: frozenset[str]) -> None:
        with self._lock:
            if values != self._values:
                self._values, self._masker = values, None

    def with_secrets(self, values: frozenset[str]) -> Mask:
        if values == self._values:
            return self
        mask = Mask(self._make, keeps_structured=self.keeps_structured)
        mask.set_secrets(values)
        return mask

    def stream(self) -> StreamMask:
        return self._current_masker.stream()

    def text(self, text: str) -> str:
        return self._current_masker.mask(text)

    def output(self, output: ToolOutput, *, tool: str) -> ToolOutput:
        content, structured, summary = output.content, output.structured, self.text(output.summary)
        if isinstance(content, str):
            content = self.text(content)
        elif content is not None:
            content = tuple(Text(self.text(part.text)) if isinstance(part, Text) else part for part in content)
        if tool not in self.keeps_structured:
            structured, _count = self.value(structured)
        return msgspec.structs.replace(output, content=content, summary=summary, structured=structured)

    def value(self, value: Any) -> tuple[Any, int]:
        """Return a value in builtin types, masked, and the number of secrets that were masked in it."""
        with contextlib.suppress(TypeError, ValueError):  # a value that JSON cannot represent stays unchanged
            value = msgspec.to_builtins(value)
        # All texts are searched as one: a private key may span several of them, and a single search is cheapest.
        texts = _texts_in(value)
        found = self._current_masker.secrets("\n".join(texts))
        return (_replace_texts(value, _masked(texts, found)) if found else value), len(found)

    def document_value(self, value: Any) -> tuple[Any, int]:
        """Mask an exported document: also texts that only their key marks as secrets, as in `"password": "x"`."""
        value, count = self.value(value)
        document = msgspec.json.encode(value).decode()
        masks = {}  # by secret
        for match in self._current_masker.secrets(document):
            # A match may include the quotation marks around the secret: the longest piece is the secret itself.
            secret = max(document[match.start : match.end].split('"'), key=len)
            with contextlib.suppress(msgspec.DecodeError):  # the match ends within an escape such as \u00e4
                masks[msgspec.json.decode(f'"{secret}"')] = f"[masked: {match.rule}]"
        changed = {}
        for text in _texts_in(value) if masks else ():
            masked = text
            for secret, mask in masks.items():
                masked = masked.replace(secret, mask)
            if masked != text:
                changed[text] = masked
        return (_replace_texts(value, changed) if changed else value), count + len(changed)


def _texts_in(value: Any) -> list[str]:
    """Return every text in a value, in order; equal neighbours are returned once."""
    texts: list[str] = [""]
    waiting = [value]  # a stack, because recursion would take three times as long
    while waiting:
        item = waiting.pop()
        match item:
            case str() if item != texts[-1]:
                texts.append(item)
            case dict():
                waiting.extend(reversed(item.values()))
            case list() | tuple():
                # Column by column, because a secret may span the lines of a file, and each line is a row of a table.
                waiting.extend(reversed(_columns(item)))
            case msgspec.Struct():
                waiting.append(msgspec.structs.asdict(item))
    return texts


def _columns(rows: Sequence[Any]) -> Sequence[Any]:
    """Return the cells of a table (a list of mappings) column by column; return other lists unchanged."""
    if not rows or not all(isinstance(row, dict) for row in rows):
        return rows
    names = dict.fromkeys(chain.from_iterable(rows))  # each once, in the order of their first use
    return [row[name] for name in names for row in rows if name in row]


def _masked(texts: Iterable[str], found: Sequence[Secret]) -> dict[str, str]:
    """Return the masked form of each text with part of a secret; `found` has positions in `"\\n".join(texts)`."""
    masked: dict[str, str] = {}
    begin, remaining = 0, deque(found)  # the position of the text in the joined texts, and the secrets from there on
    for text in texts:
        end = begin + len(text)
        pieces: list[str] = []
        position = 0  # in this text; the text before it is in `pieces` already
        while remaining and remaining[0].start < end:
            secret = remaining[0]
            if secret.end > begin:
                pieces += (text[position : max(secret.start - begin, 0)], f"[masked: {secret.rule}]")
                position = min(secret.end, end) - begin
            if secret.end > end:  # the secret continues in the next text
                break
            remaining.popleft()
        if pieces and text:
            masked[text] = "".join((*pieces, text[position:]))
        begin = end + 1  # after the line end
    return masked


def _replace_texts(value: Any, replacements: Mapping[str, str]) -> Any:
    match value:
        case str():
            return replacements.get(value, value)
        case dict():
            return {key: _replace_texts(item, replacements) for key, item in value.items()}
        case list() | tuple():
            return [_replace_texts(item, replacements) for item in value]
        case msgspec.Struct():
            return _replace_texts(msgspec.structs.asdict(value), replacements)
    return value
