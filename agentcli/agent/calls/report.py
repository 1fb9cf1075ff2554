"""Publishes the events of one call while it runs, and makes its result."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from agentcli.agent.events import CallError, Emit, OutputDelta, ToolFinished, ToolStarted
from agentcli.agent.hooks import CallRecord
from agentcli.agent.masking import Mask
from agentcli.conversation.entries import Result
from agentcli.errors import Declined, ToolError
from agentcli.llm.messages import ToolResult, ToolUse
from agentcli.tools.observation import LARGEST_KEPT_AS_IS, cut_middle, formatted
from agentcli.tools.summary import call_title
from agentcli.tools.tool import LazyResult
from agentcli.tools.tool import ToolOutput as Output

if TYPE_CHECKING:
    from agentcli.safety.secrets.masking import StreamMask

INTERRUPTED = "Not run: interrupted by the user."
OMITTED = {"omitted": "larger than 1 MB"}
_SLICE = 1_000  # entries of a list whose size is looked at together


@dataclass(kw_only=True)
class Report:
    """The report on one call; `result` is set once it has ended.

    With `gives_all` a structured result that is made on request is made, else left out. `heard` is the output so far,
    `waited_s` how long the call waited for the person's answer, which is not its own time.
    """

    call: ToolUse
    emit: Emit
    mask: Mask | None = None
    gives_all: bool = False
    result: Result | None = None
    heard: list[str] = field(default_factory=list)
    record: CallRecord | None = None
    is_running: bool = False
    is_trial: bool = False
    retry_count: int = 0
    last_error: str = ""
    answer: str = ""
    level: str = ""
    waited_s: float = 0.0
    _stream: StreamMask | None = None
    _started: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        return max(0.0, time.perf_counter() - self._started - self.waited_s)

    def start(self) -> None:
        call = self.call
        self.emit(ToolStarted(call.id, call.name, call.input, call_title(call.name, call.input)))

    def show(self, text: str) -> None:
        """Output of a call that runs; a word that may be the beginning of a secret waits for its end."""
        if self.mask is not None:
            self._stream = self._stream or self.mask.stream()
            text = self._stream.feed(text)
        self._emit_output(text)

    def _emit_output(self, text: str) -> None:
        if text:
            self.heard.append(text)
            self.emit(OutputDelta(self.call.id, text))

    def _end_output(self) -> None:
        if self._stream is not None:
            self._emit_output(self._stream.close())
            self._stream = None

    def finish(self, output: Output, error: CallError | None = None) -> None:
        self._end_output()
        if self.gives_all:
            output = output.whole()
        elif isinstance(output.structured, LazyResult):
            output = msgspec.structs.replace(output, structured=OMITTED)
        if self.mask is not None:
            output = self.mask.output(output, tool=self.call.name)
        call = self.call
        if error is None and output.error_kind is not None:
            said, _, why = str(output.content).rpartition("\n")
            failed = ToolError(why.strip("[]"), kind=output.error_kind)  # tools end with what was out of the ordinary
            error = self._error(failed)
            output = msgspec.structs.replace(output, content=_with_partial(failed, said))
        if self.mask is not None and error is not None:
            error = msgspec.structs.replace(error, message=self.mask.text(error.message))
        result = ToolResult(call.id, output.content or "", output.is_error)
        took_ms = round(self.seconds * 1000, 1)
        kind = error.kind if error else ""
        self.result = Result(
            result=result,
            name=call.name,
            summary=output.summary,
            duration_ms=took_ms,
            structured=_bounded(output.structured),
            error_kind=kind,
            retry_count=self.retry_count,
            last_error=self.last_error,
            tool_version=self.record.version if self.record else "1",
            caller=self.record.caller if self.record else "main",
            mode=self.record.mode if self.record else "",
            answer=self.answer,
            error_code=error.code if error and error.code != kind else "",
            output_level=self.level,
        )
        self.emit(
            ToolFinished(
                id=call.id,
                name=call.name,
                result=result,
                duration_ms=took_ms,
                summary=output.summary,
                structured=output.structured,
                error_kind=kind,
                error=error,
                retry_count=self.retry_count,
                last_error=self.last_error,
                answer=self.answer,
            )
        )

    def _error(self, error: ToolError) -> CallError:
        return CallError(error.kind, error.code, str(error), self.call.id, error.is_retryable)

    def fail(self, error: ToolError) -> None:
        """Also with what the call had said when its time ran out, as brief as results can be."""
        self.retry_count, self.last_error = error.retry_count, error.last_error
        self._end_output()
        partial = error.partial or ("".join(self.heard) if error.kind == "timeout" else "")
        shown = _with_partial(error, formatted(partial.strip(), "brief"))
        if isinstance(error, Declined):
            self.answer = error.answer
        summary = self.answer if isinstance(error, Declined) else str(error)
        self.finish(Output(shown, is_error=True, summary=_first_line(summary)), self._error(error))

    def interrupt(self) -> None:
        self._end_output()
        said = cut_middle("".join(self.heard))
        effects = "it ran on a stand-in, and nothing of it was kept" if self.is_trial else "it may have had effects"
        ended = f"{said}\n[interrupted by the user; {effects}]".lstrip()
        self.finish(Output(ended if self.is_running else INTERRUPTED, is_error=True, summary="interrupted"))


def _bounded(structured: object) -> object:
    """Return a structured result as the log stores it; a very large one is in the content, or in a data file."""
    size = 0
    for part in _parts(structured):
        size += len(msgspec.json.encode(part, enc_hook=str))
        if size > LARGEST_KEPT_AS_IS:
            return OMITTED
    return structured


def _parts(structured: object) -> Iterator[object]:
    """The values of a mapping, long lists in slices: no more need be encoded than shows that it is too large."""
    for value in structured.values() if isinstance(structured, dict) else [structured]:
        if isinstance(value, list):
            yield from (value[start : start + _SLICE] for start in range(0, len(value), _SLICE))
        else:
            yield value


def _with_partial(error: ToolError, said: str) -> str:
    """The error as the model reads it, below what the call said before."""
    return f"{said.rstrip()}\n[{error.told}]" if said.strip() else error.told


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0][:200]
