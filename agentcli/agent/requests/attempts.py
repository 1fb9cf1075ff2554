"""Sends a request within the budgets: each attempt reserves its price; a rejected request is rewritten."""

import asyncio
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import aclosing
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from agentcli.agent.accounting import Budgets, Reservation
from agentcli.agent.events import Emit, Notice
from agentcli.errors import UserError
from agentcli.llm import provider as llm
from agentcli.llm.errors import BadRequest, ContextOverflow, ModelNotFound, ProviderError
from agentcli.llm.media import Medium, media_in, replace_media
from agentcli.llm.messages import Block, Message, Text, ToolResult, ToolUse, Usage, encode_json, is_thought
from agentcli.llm.models import ModelInfo, RequestTarget, estimate, max_estimate


class Attempt(Struct, kw_only=True):
    """The newest attempt of a request. `retries` counts the attempts before it."""

    sent: llm.Request
    retries: int = 0
    duration_ms: int = 0
    first_token_ms: int | None = None
    is_estimated: bool = False  # the usage is an estimate, because the provider reported none


class PaidRequest(Struct, kw_only=True, dict=True):
    """A request and its retries, each within the budgets.

    About the running attempt, `_reservation` is its part of the budgets, `_has_begun` is True once its stream had an
    event, `_reported` is the usage so far, `_bytes` counts text, thinking and calls, and `_call_bytes` only the calls.
    """

    target: RequestTarget
    budgets: Budgets
    policy: llm.RetryPolicy
    # Called for an attempt that ended without a reply, with its likely usage. The budgets are charged the worst case.
    on_broken: Callable[[Usage], None]
    on_retry: llm.OnRetry = lambda *failure: None
    max_prompt_tokens: Callable[[llm.Request, ModelInfo], int] = max_estimate  # an upper bound

    async def reply(
        self, request: llm.Request, on_event: Callable[[llm.StreamEvent], object] = lambda event: None
    ) -> llm.Done:
        """Return the reply with its usage. Raises `ProviderError`, and `OverBudget` if no budget covers an attempt."""
        self._reservation = Reservation([], 0, math.inf, is_open=False)  # nothing is reserved before the first attempt
        self.attempt, provider = Attempt(sent=request), self.target.provider
        try:
            async with asyncio.timeout(None) as self._deadline:
                stream = llm.stream_with_retry(
                    provider,
                    request,
                    policy=self.policy,
                    on_retry=self._before_retry,
                    before_attempt=self._before_attempt,
                )
                async with aclosing(stream) as events:
                    async for event in events:
                        self._count_received(event)
                        if isinstance(event, llm.Done):
                            return self._with_usage(event)
                        on_event(event)
        except TimeoutError as error:
            if not self._deadline.expired():  # this timeout came from elsewhere
                raise
            limits = self.policy.reply_limits
            if self._reservation.seconds > limits.max_reply_s:  # the budgets would have allowed more time
                too_long = limits.late_error()
                self._end_without_reply(too_long)
                raise too_long from error
            self._end_without_reply()
            self.budgets.check()  # raises the error of the budget, if that is used up after the charge
            raise UserError("The request was stopped because its time budget ran out.") from error
        except ProviderError as error:
            self._end_without_reply(error)
            raise
        finally:
            self._end_without_reply()  # for a cancellation; after a reply or an error, it does nothing
        raise AssertionError(f"{self.target.name} ended its stream without Done")

    def _before_attempt(self, request: llm.Request) -> llm.Request:
        """Reserve the worst case of an attempt; return the request with a reply as long as the budgets allow."""
        info, prices = self.target.info, self.target.info.prices
        prompt_tokens = partial(self.max_prompt_tokens, request, info)
        if self.budgets.is_limited and prices and request.lasts_an_hour:
            # Caching for an hour is the most expensive that can happen to the tokens of a prompt.
            info = replace(info, prices=prices.cached_for_an_hour())
        self._reservation = self.budgets.reserve(prompt_tokens, request.max_tokens, info)
        self.attempt.sent, self.attempt.first_token_ms = replace(request, max_tokens=self._reservation.max_tokens), None
        self._has_begun, self._reported, self._started = False, Usage(), time.monotonic()
        self._bytes = self._call_bytes = 0
        limit_s = min(self._reservation.seconds, self.policy.reply_limits.max_reply_s)
        self._deadline.reschedule(asyncio.get_running_loop().time() + limit_s)
        return self.attempt.sent

    def _before_retry(self, number: int, delay_s: float, error: ProviderError) -> None:
        self._end_without_reply(error)
        self._deadline.reschedule(None)  # the pause before the retry is not part of an attempt's time
        self.attempt.retries = number
        self.on_retry(number, delay_s, error)

    def _count_received(self, event: llm.StreamEvent) -> None:
        self._has_begun = True
        match event:
            case llm.TextDelta(text) | llm.ThinkingDelta(text) | llm.ToolCallDelta(_, text):
                if self.attempt.first_token_ms is None:
                    self.attempt.first_token_ms = round((time.monotonic() - self._started) * 1000)
                size = len(text) if text.isascii() else len(text.encode(errors="replace"))
                self._bytes += size
                self._call_bytes += size if isinstance(event, llm.ToolCallDelta) else 0
                self.policy.reply_limits.check(self._bytes, self._call_bytes)
            case llm.UsageUpdate(usage):
                self._reported = usage

    def _with_usage(self, done: llm.Done) -> llm.Done:
        """Return a reply, with its usage estimated if the server reported none, as when the stream's end was lost."""
        self.attempt.is_estimated = done.usage == Usage()
        if not self.attempt.is_estimated:
            self._settle(done.usage)
            return done
        likely, worst = self._estimated_usage()
        self._settle(worst)
        return replace(done, usage=likely)

    def _settle(self, usage: Usage) -> None:
        duration_s = time.monotonic() - self._started
        self.attempt.duration_ms = round(duration_s * 1000)
        self._reservation.settle(usage, self.target.info.cost(usage), duration_s)

    def _end_without_reply(self, error: ProviderError | None = None) -> None:
        """End an attempt without a reply. It is free if an error shows that the server does not bill it."""
        if not self._reservation.is_open:  # the attempt has ended already
            return
        if error is not None and not (self._has_begun or error.is_answered):
            self._settle(Usage())
            return
        likely, worst = self._estimated_usage()
        self._settle(worst)
        self.on_broken(likely)

    def _estimated_usage(self) -> tuple[Usage, Usage]:
        """Return the usage of a reply without a final count: the likely one, and the maximum."""
        info, sent = self.target.info, self.attempt.sent
        likely = self._usage_with_output(self._bytes // 4)  # a token is about four bytes, and rarely less than two
        may_reason_unseen = info.thinking != "none" or not info.is_known
        worst = self._usage_with_output(self._reservation.max_tokens if may_reason_unseen else self._bytes // 2)
        if not likely.prompt_tokens and likely.cost_usd is None:  # the stream reported no prompt tokens either
            likely = replace(likely, input_tokens=estimate(sent, info).tokens)
            # Counted as cache writes, the most expensive kind of prompt tokens.
            worst = replace(worst, cache_creation_input_tokens=self.max_prompt_tokens(sent, info))
        return likely, worst

    def _usage_with_output(self, tokens: int) -> Usage:
        """Return the reported usage with an estimate of the reply's tokens, unless the server counted more."""
        return replace(self._reported, output_tokens=max(self._reported.output_tokens, tokens))


MAX_REWRITES = 8  # a conversation with every kind of content has six, and a rejection may name several fields
TOO_LARGE = 413
_OF_CONTENT = (400, TOO_LARGE, 415, 422)  # HTTP statuses that reject a request's content
# Prefixes of a `Rewrite`'s keys. Other keys are a call's id, the data of an image or document, or a thought's `repr`.
_FIELD, _RESULT, _TOOL = "field ", "result ", "tool "

# Words of rejections. The patterns are compiled at the first rejection, because that takes 3 ms.
_ABOUT_THINKING = r"thinking|signature|reasoning"
_ABOUT_MEDIA = r"image|media|vision|visual|multi-?modal|mmproj|pdf|document|base64|\bfile"
_ABOUT_CALLS = r"\broles?\b|tool_(use|call|result)|template|jinja"
_ABOUT_RESULTS = r"filter|polic|safety|moderat|sensitiv|inappropriate|inspection|\brisk|flagged|敏感|违规|风险|不安全"
_ABOUT_FORM = r"message|content|block|tool_"
# Problems with the account, the model or the length, for which some services also answer 400.
_ABOUT_OTHERS = (
    r"credit|balance|billing|quota|usage limit|api.?key|organi[sz]ation|account|location|region|\baccess\b"
    r"|max_(completion_)?tokens|model (id|name)|(unknown|invalid|unsupported) model"
    r"|model.{0,60}(not (supported|available)|unavailable|deprecated|retired)"
)
_ABOUT_SCHEMA = r"schema|parameters|propert|declaration|definition"
_TOOL_INDEX = r"\b(?:tools|function_declarations)\W{1,2}(\d+)\b"  # such as "tools.3"; the last match is the innermost
_A_THOUGHT = r'^""$|"thinking"|"redacted_thinking"|"reasoning_|"encrypted_content"'
_NO_THINKING = r"not support.{0,40}thinking|thinking.{0,40}not support"
# Optional fields of a request's body, each with a pattern for rejections that name it.
_FIELDS = {
    "stream_options": r"\bstream_options\b",
    "temperature": r"\btemperature\b",
    "reasoning_effort": r"\b(reasoning_)?effort\b",
    "reasoning": r"\breasoning[. ](effort|summar)|['\"`]reasoning['\"`]",
    "include": r"encrypted content is not supported",
    "output_config": r"\boutput_config\b|\beffort\b|json_schema",
    "response_format": r"\bresponse_format\b|json_schema",
    "text": r"\btext\.format\b|json_schema",
    "enable_thinking": r"\benable_thinking\b",
    "chat_template_kwargs": r"\bchat_template_kwargs\b",
    "thinking": _NO_THINKING,
    "think": _NO_THINKING,
    "parallel_tool_calls": r"\bparallel_tool_calls\b",
    "store": r"['\"`]store['\"`]|: store\b",
    "tools": r"\btools\b|support\w* (\w+ )?(tool|function)|tool (use|choice|calling).{0,60}(support|requires)",
}

log = logging.getLogger(__name__)


class Rewrite(Struct, frozen=True):
    """A change to a rejected request."""

    phrase: str  # "without tool results", as the person reads it
    keys: frozenset[str]  # the parts of the request for `without` to leave out
    is_tried_alone: bool = False  # if it does not help, the next attempt is made without it; others add up


async def with_repairs(
    request: llm.Request,
    send: Callable[[llm.Request], Awaitable[tuple[llm.Done, Attempt]]],
    emit: Emit,
    *,
    model: str,
    info: ModelInfo,
    rejected: dict[str, frozenset[str]],
) -> tuple[llm.Done, Attempt]:
    """Send a request with `send`. If it is rejected, rewrite and resend it until the model accepts it.

    `rejected` stores the keys that were left out, by model, for later requests. Raises `ProviderError` if no rewrite
    helps, or the rejection has other reasons.
    """
    # `omitted` are the keys that the next request leaves out. Leaving out the `proven` ones cured earlier rejections.
    # `cumulative` adds the keys of all rewrites tried against the present rejection, except those that are tried alone.
    omitted = proven = cumulative = rejected.get(model, frozenset())
    last_text, tried = "", set[str]()
    while True:
        try:
            reply = await send(without(request, omitted))
        except ProviderError as failure:
            error = _as_plain_rejection(failure, request, info)
            if str(error) != last_text:  # another rejection, so leaving out `omitted` has cured the one before
                last_text, proven, cumulative = str(error), omitted, omitted
            possible = rewrites(without(request, proven), error)
            rewrite = next((one for one in possible if one.phrase not in tried and not one.keys <= omitted), None)
            if error.shown or rewrite is None or len(tried) == MAX_REWRITES:  # a partly shown reply is not repeated
                raise error from failure.__cause__
            log.warning("the provider rejected a request (%s): it is sent again %s", error, rewrite.phrase)
            emit(Notice(f"The provider rejected the request ({error}). Retrying {rewrite.phrase}."))
            tried.add(rewrite.phrase)
            if rewrite.is_tried_alone:
                omitted = proven | rewrite.keys
            else:  # several of these may be needed together
                omitted = cumulative = cumulative | rewrite.keys
        else:
            rejected[model] = omitted
            return reply


def _as_plain_rejection(error: ProviderError, request: llm.Request, info: ModelInfo) -> ProviderError:
    """Return the error, as a `BadRequest` if it only guesses that a request below half the window is too long."""
    is_guess = isinstance(error, ContextOverflow) and error.is_guess
    if not is_guess or estimate(request, info).tokens > info.window / 2:
        return error
    plain = BadRequest(str(error), status=error.status)
    plain.sent = error.sent
    return plain


def blames_content(error: ProviderError) -> bool:
    """Return True if a rejection may be about the request's content, not about its URL, its model or the account."""
    if not isinstance(error, BadRequest) or isinstance(error, ModelNotFound):
        return False
    if error.status == TOO_LARGE:  # most bytes are images, which can be left out
        return True
    if isinstance(error, ContextOverflow):  # a compaction is needed
        return False
    names_content = _is_about(f"{_ABOUT_THINKING}|{_ABOUT_MEDIA}|{_ABOUT_CALLS}|{_ABOUT_RESULTS}", error)
    may_mean_content = error.status in _OF_CONTENT or _is_about(_ABOUT_FORM, error)
    return names_content or bool(_named_fields(error)) or (may_mean_content and not _is_about(_ABOUT_OTHERS, error))


def rewrites(request: llm.Request, error: ProviderError) -> list[Rewrite]:
    """Return the rewrites that may help a rejected request, those that the text of the rejection suggests first."""
    found = _without_named_tool(request, error)  # the rejection may be about this tool's schema
    if not blames_content(error):  # neither an optional field nor a message is to blame
        return found
    for field in _named_fields(error):
        fields = (field, "parallel_tool_calls") if field == "tools" else (field,)  # both are about tools
        keys = frozenset(_FIELD + name for name in fields)
        found.append(Rewrite(f"without {field}", keys, is_tried_alone=True))
    return found + _content_rewrites(request, error)


def _named_fields(error: ProviderError) -> list[str]:
    return [field for field, words in _FIELDS.items() if field in error.sent and _is_about(words, error)]


def _content_rewrites(request: llm.Request, error: ProviderError) -> list[Rewrite]:
    """Return the rewrites of a request's messages; those that the text of the rejection suggests come first."""
    blocks = [block for message in request.messages for block in message.content]
    # Reasoning and media that were not sent cannot be the cause. If the body is unknown (`sent` is `""`), any can.
    sent = encode_json(error.sent.get("messages") or error.sent.get("input", "")).decode()
    thoughts = [repr(block) for block in blocks if is_thought(block)] if re.search(_A_THOUGHT, sent) else []
    media = [m.source.data for m in media_in(request.messages) if m.source.data in sent or not error.sent]
    calls = [block.id for block in blocks if isinstance(block, ToolUse)]
    # The provider accepted the results in earlier requests, so it must be the new ones, if there are any.
    results = _results(request.messages[request.earlier_messages :]) or _results(request.messages)
    # Each rewrite with the words of rejections that suggest it.
    suggested = [
        (_ABOUT_THINKING, Rewrite("without earlier reasoning", frozenset(thoughts))),
        (_ABOUT_MEDIA, Rewrite("without images and documents", frozenset(media))),
        (_ABOUT_CALLS, Rewrite("with earlier calls as text", frozenset(calls))),
        (_ABOUT_RESULTS, Rewrite("without tool results", frozenset(results), is_tried_alone=True)),
    ]
    if error.status == TOO_LARGE:  # only media and results are large; after an overflow, a compaction shortens results
        large = (_ABOUT_MEDIA,) if isinstance(error, ContextOverflow) else (_ABOUT_MEDIA, _ABOUT_RESULTS)
        suggested = [(words, rewrite) for words, rewrite in suggested if words in large]
    suggested.sort(key=lambda pair: not _is_about(pair[0], error))  # False first: the suggested ones
    return [rewrite for _, rewrite in suggested if rewrite.keys]


def _without_named_tool(request: llm.Request, error: ProviderError) -> list[Rewrite]:
    """Return the rewrite without the tool that the rejection names by its index or name, if any."""
    if not isinstance(error, BadRequest) or isinstance(error, ContextOverflow | ModelNotFound):
        return []
    sent, names = error.sent.get("tools") or [], [tool.name for tool in request.tools]
    named = [name for name in names if _mentions(error, name)] if _is_about(_ABOUT_SCHEMA, error) else []
    # "tools.3.custom.input_schema", or "tools[0].function_declarations[3].parameters": the last number is the tool's.
    indexes = re.findall(_TOOL_INDEX, _error_text(error))
    if indexes and (index := int(indexes[-1])) < len(sent):  # an index is more certain than a name in the text
        named.insert(0, (sent[index].get("function") or sent[index]).get("name"))
    return [Rewrite(f"without the tool {name}", frozenset((_TOOL + name,))) for name in named[:1] if name in names]


def _mentions(error: ProviderError, tool: str) -> bool:
    """Return True if a rejection names the tool. Names other than MCP's are common words, so they must be quoted."""
    name = re.escape(tool)
    pattern = rf"\b{name}(?!\w)" if tool.startswith("mcp__") else rf"(['\"`]){name}\1"
    return re.search(pattern, _error_text(error)) is not None


def _error_text(error: ProviderError) -> str:
    """Return the code and the message of an error without URLs, whose words are unrelated to its cause."""
    return re.sub(r"https?://\S+", "", f"{error.code} {error}")


def _is_about(pattern: str, error: ProviderError) -> bool:
    return re.search(pattern, _error_text(error), re.IGNORECASE) is not None


def _results(messages: Iterable[Message]) -> list[str]:
    return [_RESULT + b.tool_use_id for message in messages for b in message.content if isinstance(b, ToolResult)]


def without(request: llm.Request, keys: Collection[str]) -> llm.Request:
    """Return the request without the parts that these keys name; text replaces media, results and calls."""
    if not keys:
        return request

    def rewrite_medium(block: Medium) -> Text | Medium:
        is_rejected = block.source.data in keys
        return Text(f"[{type(block).__name__} omitted: the provider rejected it]") if is_rejected else block

    def rewrite_message(message: Message) -> Message:
        blocks = (block for block in message.content if not (is_thought(block) and repr(block) in keys))
        return replace(message, content=tuple(_rewritten(block, keys) for block in blocks))

    messages = request.messages
    # Unchanged messages are already validated and encoded, so they are kept if the keys name only fields and tools.
    if not all(key.startswith((_FIELD, _TOOL)) for key in keys):
        messages = tuple(map(rewrite_message, replace_media(messages, rewrite_medium, range(len(messages)))))
    tools = tuple(tool for tool in request.tools if _TOOL + tool.name not in keys)
    unsent = frozenset(key.removeprefix(_FIELD) for key in keys if key.startswith(_FIELD))
    return replace(request, messages=messages, tools=tools, unsent=unsent)


def _rewritten(block: Block, keys: Collection[str]) -> Block:
    """Return a block with its result omitted, or a call or its result as text, if the keys say so."""
    if isinstance(block, ToolResult) and _RESULT + block.tool_use_id in keys:
        block = replace(block, content="[The call ran, but its result is omitted: the provider rejected it]")
    match block:
        case ToolUse(id, name, arguments) if id in keys:
            return Text(f"\n[called {name} with {encode_json(arguments).decode()}]")
        case ToolResult(id) if id in keys:
            return Text(f"[result{' (an error)' if block.is_error else ''}]\n{block.text}")
        case _:
            return block
