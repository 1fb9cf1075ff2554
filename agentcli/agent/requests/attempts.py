"""Sends a request: within the budgets, which are reserved before each try, and in another form if it is rejected."""

import asyncio
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from agentcli.agent.accounting import Budgets, Reservation
from agentcli.agent.events import Emit, Notice
from agentcli.errors import UserError
from agentcli.llm import provider as llm
from agentcli.llm.errors import BadRequest, ContextOverflow, ModelNotFound, ProviderError
from agentcli.llm.media import Medium, media_in, with_media
from agentcli.llm.messages import (
    Block,
    Message,
    Opaque,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Usage,
    encode_json,
)
from agentcli.llm.models import ModelInfo, estimate, request_size
from agentcli.llm.provider import OnRetry, Provider, Request, RetryPolicy, StreamEvent, stream_with_retry

# The most tokens that a byte can be: base64 comes to 0.72 in cl100k_base, characters beyond ASCII to 0.95.
TOKENS_PER_BYTE, TOKENS_PER_FOREIGN_BYTE = 0.75, 1.0
TOKENS_PER_MESSAGE, MEDIA_MARGIN = 8, 1.5


def most_tokens(request: Request, info: ModelInfo) -> int:
    """Return the most tokens that a prompt can have of which the provider has counted nothing."""
    size = request_size(request, info)
    text = size.ascii * min(1.0, TOKENS_PER_BYTE * max(1.0, info.token_factor))
    media = size.media * MEDIA_MARGIN + TOKENS_PER_MESSAGE * len(request.messages)
    return int(text + size.foreign * TOKENS_PER_FOREIGN_BYTE + media) + 1


class RequestTarget(NamedTuple):
    """The model that a request goes to; its name is `provider/model`."""

    provider: Provider
    info: ModelInfo

    @property
    def name(self) -> str:
        return f"{self.provider.name}/{self.provider.model}"


@dataclass(kw_only=True)
class Attempt:
    """The newest try of a request. `retries` counts the tries before it."""

    sent: Request
    retries: int = 0
    duration_ms: int = 0
    is_estimated: bool = False  # the provider did not count the tokens of the reply


@dataclass(kw_only=True)
class PaidRequest:
    """A request and its retries, each within the budgets.

    `max_prompt_tokens` bounds the tokens of a prompt. `on_broken` is called for a try that ended without a reply,
    with the usage that its stream reported, else an estimate; the budgets are charged with the worst case.
    """

    target: RequestTarget
    budgets: Budgets
    policy: RetryPolicy
    on_broken: Callable[[Usage], None]
    on_retry: OnRetry = lambda *failure: None
    max_prompt_tokens: Callable[[Request, ModelInfo], int] = most_tokens

    async def reply(self, request: Request, on_event: Callable[[StreamEvent], object] = lambda event: None) -> llm.Done:
        """Return the reply with what it used. Raises `ProviderError`, and `OverBudget` if a try cannot be paid for."""
        self._held: Reservation | None = None
        self.attempt = Attempt(sent=request)
        try:
            async with asyncio.timeout(None) as self._deadline:
                stream = stream_with_retry(
                    self.target.provider,
                    request,
                    policy=self.policy,
                    on_retry=self._before_retry,
                    before_try=self._before_try,
                )
                async with aclosing(stream) as events:
                    async for event in events:
                        self._count(event)
                        if isinstance(event, llm.Done):
                            return self._with_usage(event)
                        on_event(event)
        except TimeoutError as error:
            if not self._deadline.expired():
                raise
            self._end_without_reply()
            self.budgets.check()
            raise UserError("The request was stopped because its time budget ran out.") from error
        except ProviderError as error:
            self._end_without_reply(error)
            raise
        finally:
            self._end_without_reply()
        raise AssertionError(f"{self.target.name} ended its stream without Done")

    def _before_try(self, request: Request) -> Request:
        prompt_tokens = partial(self.max_prompt_tokens, request, self.target.info)
        self._held = self.budgets.reserve(prompt_tokens, request.max_tokens, self._at_highest_price(request))
        self.attempt.sent = replace(request, max_tokens=self._held.max_tokens)
        self._used, self._received, self._has_begun, self._started = Usage(), 0, False, time.monotonic()
        if self._held.seconds < math.inf:
            self._deadline.reschedule(asyncio.get_running_loop().time() + self._held.seconds)
        return self.attempt.sent

    def _at_highest_price(self, request: Request) -> ModelInfo:
        """Return the model, at the price of keeping its prompt for an hour where the request asks for that."""
        info, prices = self.target.info, self.target.info.prices
        if not self.budgets.is_limited or prices is None or prices.cache_write_1h is None or not request.lasts_an_hour:
            return info
        return replace(info, prices=replace(prices, cache_write=prices.cache_write_1h))

    def _before_retry(self, number: int, delay_s: float, error: ProviderError) -> None:
        self._end_without_reply(error)
        self.attempt.retries = number
        self.on_retry(number, delay_s, error)

    def _count(self, event: StreamEvent) -> None:
        self._has_begun = True
        match event:
            case llm.TextDelta(text) | llm.ThinkingDelta(text) | llm.ToolCallDelta(_, text):
                self._received += len(text) if text.isascii() else len(text.encode(errors="replace"))
            case llm.UsageUpdate(usage):
                self._used = usage

    def _with_usage(self, done: llm.Done) -> llm.Done:
        """Return a reply, its usage estimated where the server did not count: some never do, or the end was lost."""
        self.attempt.is_estimated = done.usage == Usage()
        if not self.attempt.is_estimated:
            self._settle(done.usage)
            return done
        used, worst = self._estimated_usage()
        self._settle(worst)
        return replace(done, usage=used)

    def _settle(self, usage: Usage) -> None:
        assert self._held is not None
        duration_s = time.monotonic() - self._started
        self.attempt.duration_ms = round(duration_s * 1000)
        self._held.settle(usage, self.target.info.cost(usage), duration_s)

    def _end_without_reply(self, error: ProviderError | None = None) -> None:
        """End a try that brought no reply. One that the server refused, or that never reached it, is free."""
        if self._held is None or not self._held.is_open:
            return
        if error is not None and not self._has_begun and not error.is_answered:
            self._settle(Usage())
            return
        used, worst = self._estimated_usage()
        self._settle(worst)
        self.on_broken(used)

    def _estimated_usage(self) -> tuple[Usage, Usage]:
        """Return what a reply took that was not counted to its end: an estimate, and the most it can have been."""
        assert self._held is not None
        info, sent = self.target.info, self.attempt.sent
        used, most = self._with_output(self._received // 4), self._with_output(self._received // 2)
        if info.thinking != "none" or not info.is_known:  # it may have reasoned all it was allowed to
            most = self._with_output(self._held.max_tokens)
        if not used.prompt_tokens and used.cost_usd is None:
            used = replace(used, input_tokens=estimate(sent, info).tokens)
            most = replace(most, cache_creation_input_tokens=self.max_prompt_tokens(sent, info))
        return used, most

    def _with_output(self, tokens: int) -> Usage:
        return replace(self._used, output_tokens=max(self._used.output_tokens, tokens))


MAX_REWRITES = 8  # a conversation that holds everything has six, and a refusal may name several fields
TOO_LARGE = 413
_OF_CONTENT = (400, TOO_LARGE, 415, 422)  # statuses of rejections of a request's content
_FIELD, _RESULT, _TOOL = "field ", "result ", "tool "  # beginnings of keys that are no block's own

# Patterns are compiled when a refusal is read: that takes 3 ms, which no start should pay for.
_ABOUT_THINKING = r"thinking|signature|reasoning"
_ABOUT_MEDIA = r"image|media|vision|visual|multi-?modal|mmproj|pdf|document|base64|\bfile"
_ABOUT_CALLS = r"\broles?\b|tool_(use|call|result)|template|jinja"
_ABOUT_RESULTS = r"filter|polic|safety|moderat|sensitiv|inappropriate|inspection|\brisk|flagged|敏感|违规|风险|不安全"
_ABOUT_FORM = r"message|content|block|tool_"
# An account, a model, a length: some services answer 400 for these too.
_ABOUT_OTHERS = (
    r"credit|balance|billing|quota|usage limit|api.?key|organi[sz]ation|account|location|region|\baccess\b"
    r"|max_(completion_)?tokens|model (id|name)|(unknown|invalid|unsupported) model"
    r"|model.{0,60}(not (supported|available)|unavailable|deprecated|retired)"
)
_ABOUT_SCHEMA = r"schema|parameters|propert|declaration|definition"
_TOOL_INDEX = r"\b(?:tools|function_declarations)\W{1,2}(\d+)\b"  # the last one is the innermost
_A_THOUGHT = r'^""$|"thinking"|"redacted_thinking"|"reasoning_|"encrypted_content"'  # in a body's messages
_REASONING = frozenset(("reasoning_details", "encrypted_content"))  # in a provider's own block
_NO_THINKING = r"not support.{0,40}thinking|thinking.{0,40}not support"
# Fields of a body that it can do without, and how a refusal names them.
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
T = TypeVar("T")


class Rewrite(NamedTuple):
    """A change to a rejected request, as keys for `without`. One that `stands_alone` is undone if it does not help."""

    how: str
    keys: frozenset[str]
    stands_alone: bool = False


async def with_repairs(
    request: Request,
    send: Callable[[Request], Awaitable[T]],
    emit: Emit,
    *,
    model: str,
    info: ModelInfo,
    rejected: dict[str, frozenset[str]],
) -> T:
    """Return what `send` gives for a request, in the form that the model accepts, which is kept in `rejected`.

    Raises `ProviderError` for a rejection that stays in every form, or has other reasons.
    """
    # The next try is sent without `refused`. Of it, `proven` got past earlier rejections, because the provider's words
    # changed; `forms` has beside that what was tried against the present words and does not stand alone.
    refused = forms = proven = rejected.get(model, frozenset())
    words, tried = "", set[str]()
    while True:
        try:
            sent = await send(without(request, refused))
        except ProviderError as failure:
            error = _without_guess(failure, request, info)
            if str(error) != words:
                words, forms, proven = str(error), refused, refused
            ladder = rewrites(without(request, proven), error)
            rewrite = next((found for found in ladder if found.how not in tried and not found.keys <= refused), None)
            if error.shown or rewrite is None or len(tried) == MAX_REWRITES:
                raise error from failure.__cause__
            log.warning("the provider refused a request (%s): it is sent again %s", error, rewrite.how)
            emit(Notice(f"The provider rejected the request ({error}). Retrying {rewrite.how}."))
            tried.add(rewrite.how)
            refused = (proven if rewrite.stands_alone else forms) | rewrite.keys
            forms = forms if rewrite.stands_alone else refused
        else:
            rejected[model] = refused
            return sent


def _without_guess(error: ProviderError, request: Request, info: ModelInfo) -> ProviderError:
    """Return the error, or a plain rejection for a guess that a short request (half the window) was too long."""
    if not isinstance(error, ContextOverflow) or not error.is_guess or estimate(request, info).tokens * 2 > info.window:
        return error
    plain = BadRequest(str(error), status=error.status)
    plain.sent = error.sent
    return plain


def blames_content(error: ProviderError) -> bool:
    """Return True if a rejection may be about the request's content, not its address, its model or the account."""
    if not isinstance(error, BadRequest) or isinstance(error, ModelNotFound):
        return False
    if isinstance(error, ContextOverflow) or error.status == TOO_LARGE:
        return error.status == TOO_LARGE
    content = (_ABOUT_THINKING, _ABOUT_MEDIA, _ABOUT_CALLS, _ABOUT_RESULTS)
    names_content = any(_is_about(pattern, error) for pattern in content)
    names_field = any(field in error.sent and _is_about(words, error) for field, words in _FIELDS.items())
    may_mean_content = error.status in _OF_CONTENT or _is_about(_ABOUT_FORM, error)
    return names_content or names_field or (may_mean_content and not _is_about(_ABOUT_OTHERS, error))


def rewrites(request: Request, error: ProviderError) -> list[Rewrite]:
    """Return the rewrites of a rejected request, in the order in which to try them.

    First come a tool and fields that the rejection names, then reasoning, media, calls and new results; of these
    first what the rejection is about.
    """
    tools = _named_tool(request, error)
    if not blames_content(error):
        return tools
    fields = [field for field, words in _FIELDS.items() if field in error.sent and _is_about(words, error)]
    more = {"tools": ("tools", "parallel_tool_calls")}
    unsent = [(field, frozenset(_FIELD + name for name in more.get(field, (field,)))) for field in fields]
    # What the wire format left out is not to blame. This is empty if nobody knows what was sent.
    sent = encode_json(error.sent.get("messages") or error.sent.get("input", "")).decode()
    blocks = [block for message in request.messages for block in message.content]
    thoughts = [repr(block) for block in blocks if _is_thought(block)] if re.search(_A_THOUGHT, sent) else []
    media = [data for block in media_in(request.messages) if (data := block.source.data) in sent or not error.sent]
    calls = [block.id for block in blocks if isinstance(block, ToolUse)]
    results = _results(request.messages[request.earlier_messages :]) or _results(request.messages)
    ladder = [
        (_ABOUT_THINKING, Rewrite("without earlier reasoning", frozenset(thoughts))),
        (_ABOUT_MEDIA, Rewrite("without images and documents", frozenset(media))),
        (_ABOUT_CALLS, Rewrite("with earlier calls as text", frozenset(calls))),
        (_ABOUT_RESULTS, Rewrite("without tool results", frozenset(results), stands_alone=True)),
    ]
    if error.status == TOO_LARGE:
        ladder = [ladder[1]] if isinstance(error, ContextOverflow) else [ladder[1], ladder[3]]
    ladder.sort(key=lambda rung: not _is_about(rung[0], error))
    return [
        *tools,
        *(Rewrite(f"without {field}", keys, stands_alone=True) for field, keys in unsent),
        *(rewrite for _, rewrite in ladder if rewrite.keys),
    ]


def _named_tool(request: Request, error: ProviderError) -> list[Rewrite]:
    """Return the rewrite without the tool that the rejection gives by its name or its place in the body."""
    if not isinstance(error, BadRequest) or isinstance(error, ContextOverflow | ModelNotFound):
        return []
    sent, names = error.sent.get("tools") or [], [tool.name for tool in request.tools]
    places = [int(place) for place in re.findall(_TOOL_INDEX, _error_text(error))][-1:]
    named = [(sent[place].get("function") or sent[place]).get("name") for place in places if place < len(sent)]
    if _is_about(_ABOUT_SCHEMA, error):
        # Names in quotes, because many are ordinary words; those of a server's tools also without.
        quoted = {name: rf"(['\"`]){re.escape(name)}\1" for name in names}
        bare = {name: rf"|\b{re.escape(name)}\b" if name.startswith("mcp__") else "" for name in names}
        named += [name for name in names if re.search(quoted[name] + bare[name], _error_text(error))]
    return [Rewrite(f"without the tool {name}", frozenset((_TOOL + name,))) for name in named[:1] if name in names]


def _error_text(error: ProviderError) -> str:
    return re.sub(r"https?://\S+", "", f"{error.code} {error}")


def _is_about(pattern: str, error: ProviderError) -> bool:
    return re.search(pattern, _error_text(error), re.IGNORECASE) is not None


def _results(messages: Iterable[Message]) -> list[str]:
    return [_RESULT + b.tool_use_id for message in messages for b in message.content if isinstance(b, ToolResult)]


def _is_thought(block: Block) -> bool:
    is_opaque_thought = isinstance(block, Opaque) and not _REASONING.isdisjoint(block.data)
    return is_opaque_thought or isinstance(block, Thinking | RedactedThinking)


def without(request: Request, keys: Collection[str]) -> Request:
    """Return the request without what these keys name; a text replaces an image, a document, a result or a call."""
    if not keys:
        return request

    def medium(block: Medium) -> Text | Medium:
        refused = Text(f"[{type(block).__name__} omitted: the provider rejected it]")
        return refused if block.source.data in keys else block

    def rewritten(message: Message) -> Message:
        kept = (b for b in message.content if not (_is_thought(b) and repr(b) in keys))
        return replace(message, content=tuple(_rewritten(block, keys) for block in kept))

    messages = request.messages
    if not all(key.startswith((_FIELD, _TOOL)) for key in keys):  # else they stay prepared
        messages = tuple(map(rewritten, with_media(messages, medium, range(len(messages)))))
    tools = tuple(tool for tool in request.tools if _TOOL + tool.name not in keys)
    unsent = frozenset(key.removeprefix(_FIELD) for key in keys if key.startswith(_FIELD))
    return replace(request, messages=messages, tools=tools, unsent=unsent)


def _rewritten(block: Block, keys: Collection[str]) -> Block:
    if isinstance(block, ToolResult) and _RESULT + block.tool_use_id in keys:
        block = replace(block, content="[The call ran, but its result is omitted: the provider rejected it]")
    match block:
        case ToolUse(id, name, arguments) if id in keys:
            return Text(f"\n[called {name} with {encode_json(arguments).decode()}]")
        case ToolResult(id) if id in keys:
            return Text(f"[result{' (an error)' if block.is_error else ''}]\n{block.text}")
        case _:
            return block
