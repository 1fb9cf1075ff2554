"""Publishes the events of one call while it runs, and makes its result."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from agentcli.agent.calls.masking import Mask
from agentcli.agent.events import CallError, Emit, OutputDelta, ToolFinished, ToolStarted
from agentcli.agent.hooks import CallRecord
from agentcli.conversation.entries import Result
from agentcli.errors import Declined, ToolError
from agentcli.llm.messages import ToolResult, ToolUse
from agentcli.tools.observation import MAX_INLINE_BYTES, cut_middle, formatted
from agentcli.tools.summary import call_title
from agentcli.tools.tool import LazyResult
from agentcli.tools.tool import ToolOutput as Output

if TYPE_CHECKING:
    from agentcli.safety.secrets.masking import StreamMask

INTERRUPTED = "Not run: interrupted by the user."
OMITTED = {"omitted": "larger than 1 MB"}


class Report:
    """The report on one call; `result` is set once it has ended. `heard` is the output so far.

    With `gives_all` a structured result that is made on request is made, else left out. An interrupt of a call that
    `is_dry_run` has left no trace, one of a call that only `is_running` may have.
    """

    def __init__(self, use: ToolUse, emit: Emit, mask: Mask | None = None, *, gives_all: bool = False) -> None:
        self.use = use
        self.emit = emit
        self.mask = mask
        self.result: Result | None = None
        self.record: CallRecord | None = None
        self.heard: list[str] = []
        self.answer = self.level = ""
        self.is_running = self.is_dry_run = False
        self.retry_count, self.last_error = 0, ""
        self.waited_s = 0.0
        self._gives_all = gives_all
        self._stream: StreamMask | None = None
        self._started = time.perf_counter()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Leave the time that the person takes out of the call's own."""
        since = time.perf_counter()
        try:
            yield
        finally:
            self.waited_s += time.perf_counter() - since

    def start(self) -> None:
        use = self.use
        self.emit(ToolStarted(use.id, use.name, use.input, call_title(use.name, use.input)))

    def show(self, text: str) -> None:
        """Output of a call that runs; a word that may be the beginning of a secret waits for its end."""
        if self.mask is not None:
            self._stream = self._stream or self.mask.stream()
            text = self._stream.feed(text)
        self._emit_output(text)

    def _emit_output(self, text: str) -> None:
        if text:
            self.heard.append(text)
            self.emit(OutputDelta(self.use.id, text))

    def _end_output(self) -> None:
        if self._stream is not None:
            self._emit_output(self._stream.close())
            self._stream = None

    def finish(self, output: Output, error: CallError | None = None) -> None:
        self._end_output()
        if self._gives_all:
            output = output.whole()
        elif isinstance(output.structured, LazyResult):
            output = replace(output, structured=OMITTED)
        if self.mask is not None:
            output = self.mask.output(output, tool=self.use.name)
        if error is None and output.error_kind is not None:
            said, _, why = str(output.content).rpartition("\n")
            failed = ToolError(why.strip("[]"), kind=output.error_kind)  # tools end with what was out of the ordinary
            error = self._error(failed)
            output = replace(output, content=_with_partial(failed, said))
        if self.mask is not None and error is not None:
            error = replace(error, message=self.mask.text(error.message))
        result = ToolResult(self.use.id, output.content or "", output.is_error)
        record, kind = self.record, error.kind if error else ""
        # What is very large is in the content, or in a data file.
        is_large = len(msgspec.json.encode(output.structured, enc_hook=str)) > MAX_INLINE_BYTES
        common: dict[str, Any] = {
            "name": self.use.name,
            "result": result,
            "summary": output.summary,
            "duration_ms": round(max(0.0, time.perf_counter() - self._started - self.waited_s) * 1000, 1),
            "error_kind": kind,
            "retry_count": self.retry_count,
            "last_error": self.last_error,
            "answer": self.answer,
        }
        self.result = Result(
            **common,
            structured=OMITTED if is_large else output.structured,
            tool_version=record.version if record else "1",
            caller=record.caller if record else "main",
            mode=record.mode if record else "",
            error_code=error.code if error and error.code != kind else "",
            output_level=self.level,
        )
        self.emit(ToolFinished(id=self.use.id, structured=output.structured, error=error, **common))

    def _error(self, error: ToolError) -> CallError:
        return CallError(error.kind, error.code, str(error), self.use.id, error.is_retryable)

    def fail(self, error: ToolError) -> None:
        """Also with what the call had said when its time ran out, as brief as results can be."""
        self._end_output()
        partial = error.partial or ("".join(self.heard) if error.kind == "timeout" else "")
        shown = _with_partial(error, formatted(partial.strip(), "brief"))
        if isinstance(error, Declined):
            self.answer = error.answer
        summary = self.answer if isinstance(error, Declined) else str(error)
        self.finish(Output(shown, is_error=True, summary=summary.split("\n", 1)[0][:200]), self._error(error))

    def interrupt(self) -> None:
        self._end_output()
        said = cut_middle("".join(self.heard))
        effects = "it was a dry run, and nothing of it was kept" if self.is_dry_run else "it may have had effects"
        ended = f"{said}\n[interrupted by the user; {effects}]".lstrip()
        self.finish(Output(ended if self.is_running else INTERRUPTED, is_error=True, summary="interrupted"))


def _with_partial(error: ToolError, said: str) -> str:
    """The error as the model reads it, below what the call said before."""
    return f"{said.rstrip()}\n[{error.told}]" if said.strip() else error.told
