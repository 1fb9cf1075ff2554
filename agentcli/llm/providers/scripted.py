"""Plays replies from JSON lines or a list, for tests and demos. `{{last_result}}` is the newest tool result."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from agentcli.errors import UserError
from agentcli.llm import errors, provider
from agentcli.llm.messages import Block, Message, StopReason, Text, Thinking, ToolResult, ToolUse, Usage
from agentcli.llm.models import ModelInfo, Prices, estimate
from agentcli.llm.providers import BaseProvider
from agentcli.llm.wire.reply_parts import CallIds, call_events

LAST_RESULT = "{{last_result}}"
T = TypeVar("T")
_ERRORS: dict[str, type[errors.ProviderError]] = {
    "auth": errors.AuthError, "bad_request": errors.BadRequest, "model_not_found": errors.ModelNotFound,
    "context_overflow": errors.ContextOverflow, "billing": errors.BillingError, "rate_limit": errors.RateLimit,
    "overloaded": errors.Overloaded, "server": errors.ServerError, "timeout": errors.Timeout,
    "connection": errors.ConnectionFailed,
}  # fmt: skip


class ScriptedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    input: dict[str, Any] = {}
    id: str = ""


class ScriptedError(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: str
    retry_after: float | None = None
    message: str = ""


class ScriptedReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One reply. With an `error` (or only its kind), it fails after its text and thinking were sent.

    Deltas of `chunk` characters come every `delay_ms`. The conversation's first prompt must contain `when`.
    """

    text: str = ""
    thinking: str = ""
    tool_calls: Sequence[ScriptedCall] = ()
    stop_reason: StopReason | None = None
    usage: Usage | None = None
    error: ScriptedError | str | None = None
    delay_ms: float = 0
    chunk: int = 24
    when: str = ""


AnyReply = ScriptedReply | Mapping[str, Any] | str  # a text is a reply of that text


class ScriptedProvider(BaseProvider):
    """Gives the next reply for each request. `requests` keeps the newest `keeps` requests, or all."""

    def __init__(
        self,
        replies: Iterable[AnyReply | Callable[[tuple[Message, ...]], AnyReply]],
        *,
        info: ModelInfo | None = None,
        keeps: int | None = None,
    ) -> None:
        super().__init__(info or ModelInfo("script", "scripted", prices=Prices(), takes_images=True))
        self.name = "scripted"
        self._replies = [reply if callable(reply) else _to_reply(reply) for reply in replies]
        self._unplayed = [*self._replies]
        self.requests: deque[provider.Request] = deque(maxlen=keeps)

    async def stream(self, request: provider.Request) -> AsyncGenerator[provider.StreamEvent, None]:
        self.requests.append(request)
        reply = self._next(request)
        number = len(self._replies) - len(self._unplayed)  # read now, because subagents may take replies meanwhile
        blocks: list[Block] = []
        if reply.usage is not None:  # first, so that a reply that breaks off has a price
            yield provider.UsageUpdate(reply.usage)
        parts = ((Thinking, provider.ThinkingDelta, reply.thinking), (Text, provider.TextDelta, reply.text))
        for kind, delta, written in parts:
            text = _filled(written, request)
            for start in range(0, len(text), reply.chunk):
                await asyncio.sleep(reply.delay_ms / 1000)
                yield delta(text[start : start + reply.chunk])
            blocks += [kind(text)] if text else []
        await asyncio.sleep(reply.delay_ms / 1000)
        if reply.error is not None:
            raise _scripted_error(reply.error, partial=Message("assistant", tuple(blocks)))
        ids = CallIds(request.call_ids, prefix=f"call_{number}_")
        for call in reply.tool_calls:
            use = ToolUse(ids.take(call.id), call.name, _filled(call.input, request))
            blocks.append(use)
            began, arguments, ended = call_events(use)
            size = reply.chunk if reply.delay_ms else len(arguments.partial_json)  # without a delay all at once
            yield began
            for start in range(0, len(arguments.partial_json), size):
                await asyncio.sleep(reply.delay_ms / 1000 if start else 0)
                yield provider.ToolCallDelta(use.id, arguments.partial_json[start : start + size])
            yield ended
        stop: StopReason = reply.stop_reason or ("tool_use" if reply.tool_calls else "end_turn")
        usage = reply.usage or Usage(estimate(request, self.info).tokens, len(reply.text) // 4 + 1)
        yield provider.Done(Message("assistant", tuple(blocks)), stop, usage, self.model)

    def _next(self, request: provider.Request) -> ScriptedReply:
        """Take the first unplayed reply whose `when` is in the prompt that began the conversation."""
        before_reply = takewhile(lambda message: message.role != "assistant", request.messages)
        prompt = "\n".join(b.text for message in before_reply for b in message.content if isinstance(b, Text))
        for position, reply in enumerate(self._unplayed):
            if callable(reply) or reply.when in prompt:
                del self._unplayed[position]
                return _to_reply(reply(request.messages)) if callable(reply) else reply
        if self._unplayed:
            raise errors.BadRequest("The script holds no more replies for a conversation that begins like this one.")
        raise errors.BadRequest(f"The script has ended: it holds {len(self._replies)} replies, one more was asked for.")

    async def _check(self) -> provider.Health:
        return provider.Health(True, f"a script of {len(self._replies)} replies")


def _to_reply(reply: AnyReply) -> ScriptedReply:
    """Return a reply as a record whose parts are checked. Raises `msgspec.ValidationError`."""
    if isinstance(reply, ScriptedReply):
        reply = msgspec.structs.asdict(reply)
    return msgspec.convert({"text": reply} if isinstance(reply, str) else reply, ScriptedReply)


def _scripted_error(error: ScriptedError | str, *, partial: Message) -> errors.ProviderError:
    error = ScriptedError(error) if isinstance(error, str) else error
    if error.kind not in _ERRORS:
        raise UserError(f"No error kind {error.kind!r} in a script; there is {', '.join(_ERRORS)}.")
    failure = _ERRORS[error.kind](error.message or f"scripted {error.kind} error", retry_after=error.retry_after)
    failure.partial = partial
    return failure


def read_script(path: Path) -> list[ScriptedReply]:
    """Return the replies in a script file. Raises `UserError` that names a line with an error."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(f"Could not read the script {path}: {error.strerror}.") from error
    replies = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                replies.append(msgspec.json.decode(line, type=ScriptedReply))
            except msgspec.DecodeError as error:
                raise UserError(f"{path}, line {number}: {error}") from error
    return replies


def _filled(value: T, request: provider.Request) -> T:
    """Return a text or arguments with the newest tool result in place of `{{last_result}}`."""
    text = json.dumps(value)
    if LAST_RESULT not in text:
        return value
    newest_first = (block for message in request.messages[::-1] for block in message.content[::-1])
    content = next((block.content for block in newest_first if isinstance(block, ToolResult)), "")
    result = content if isinstance(content, str) else "".join(part.text for part in content if isinstance(part, Text))
    inside_quotes = json.dumps(result)[1:-1]
    filled: T = json.loads(text.replace(LAST_RESULT, inside_quotes))
    return filled
