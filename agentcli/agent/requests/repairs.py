"""Sends a request again in another form where the provider rejects it, so that no session is stuck."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from agentcli.agent.events import Notice
from agentcli.agent.runtime import Turn
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
    encode_json,
)
from agentcli.llm.models import ModelInfo, estimate
from agentcli.llm.provider import Request

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
_A_THOUGHT = r"^$|'thinking'|'redacted_thinking'|'reasoning_|'encrypted_content'"  # in a body's messages
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
    turn: Turn, request: Request, send: Callable[[Request], Awaitable[T]], *, model: str, info: ModelInfo
) -> T:
    """Return what `send` gives for a request, in the form that the model accepts, which is kept for the session.

    Raises `ProviderError` for a rejection that stays in every form, or has other reasons.
    """
    # Another error shows that a rewrite helped: it stays.
    refused = forms = proven = turn.state.model.rejected.get(model, frozenset())
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
            turn.emit(Notice(f"The provider refused the request ({error}): trying again {rewrite.how}."))
            tried.add(rewrite.how)
            refused = (proven if rewrite.stands_alone else forms) | rewrite.keys
            forms = forms if rewrite.stands_alone else refused
        else:
            turn.state.model.rejected[model] = refused
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
    if any(_is_about(about, error) for about in (_ABOUT_THINKING, _ABOUT_MEDIA, _ABOUT_CALLS, _ABOUT_RESULTS)):
        return True
    if any(field in error.sent and _is_about(words, error) for field, words in _FIELDS.items()):
        return True
    return not _is_about(_ABOUT_OTHERS, error) and (error.status in _OF_CONTENT or _is_about(_ABOUT_FORM, error))


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
    sent = str(error.sent.get("messages") or error.sent.get("input", ""))
    blocks = [block for message in request.messages for block in message.content]
    thoughts = [repr(block) for block in blocks if _is_thought(block)] if re.search(_A_THOUGHT, sent) else []
    media = [block.source.data for block in media_in(request.messages)]
    calls = [block.id for block in blocks if isinstance(block, ToolUse)]
    results = _results(request.messages[request.earlier_messages :]) or _results(request.messages)
    ladder = [
        (_ABOUT_THINKING, Rewrite("without earlier reasoning", frozenset(thoughts))),
        (_ABOUT_MEDIA, Rewrite("without images and documents", frozenset(d for d in media if d in sent or not sent))),
        (_ABOUT_CALLS, Rewrite("with earlier calls told as text", frozenset(calls))),
        (_ABOUT_RESULTS, Rewrite("without the results of calls", frozenset(results), stands_alone=True)),
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
    places = [int(place) for place in re.findall(_TOOL_INDEX, _words(error))][-1:]
    named = [(sent[place].get("function") or sent[place]).get("name") for place in places if place < len(sent)]
    if _is_about(_ABOUT_SCHEMA, error):
        # Names in quotes, because many are ordinary words; those of a server's tools also without.
        quoted = {name: rf"(['\"`]){re.escape(name)}\1" for name in names}
        bare = {name: rf"|\b{re.escape(name)}\b" if name.startswith("mcp__") else "" for name in names}
        named += [name for name in names if re.search(quoted[name] + bare[name], _words(error))]
    return [Rewrite(f"without the tool {name}", frozenset((_TOOL + name,))) for name in named[:1] if name in names]


def _words(error: ProviderError) -> str:
    return re.sub(r"https?://\S+", "", f"{error.code} {error}")


def _is_about(pattern: str, error: ProviderError) -> bool:
    return re.search(pattern, _words(error), re.IGNORECASE) is not None


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
        refused = Text(f"[{type(block).__name__} left out: the provider refused it]")
        return refused if block.source.data in keys else block

    messages = tuple(
        replace(
            message,
            content=tuple(_rewritten(b, keys) for b in message.content if not (_is_thought(b) and repr(b) in keys)),
        )
        for message in with_media(request.messages, medium)
    )
    tools = tuple(tool for tool in request.tools if _TOOL + tool.name not in keys)
    unsent = frozenset(key.removeprefix(_FIELD) for key in keys if key.startswith(_FIELD))
    return replace(request, messages=messages, tools=tools, unsent=unsent)


def _rewritten(block: Block, keys: Collection[str]) -> Block:
    if isinstance(block, ToolResult) and _RESULT + block.tool_use_id in keys:
        block = replace(block, content="[The call was carried out; its result is left out: the provider refused it]")
    match block:
        case ToolUse(id, name, arguments) if id in keys:
            return Text(f"\n[called {name} with {encode_json(arguments).decode()}]")
        case ToolResult(id) if id in keys:
            return Text(f"[result{' (an error)' if block.is_error else ''}]\n{block.text}")
        case _:
            return block
