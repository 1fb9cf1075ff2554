"""Finds what a provider's refusal may be about, and tells that in another way, or not at all."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from msgspec.structs import replace

from agentcli.llm.errors import BadRequest, ContextOverflow, ModelNotFound, ProviderError
from agentcli.llm.json_text import encode_json
from agentcli.llm.media import media_in, with_media
from agentcli.llm.messages import (
    Block,
    Document,
    Image,
    Message,
    Opaque,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)
from agentcli.llm.provider import Request

TOO_LARGE = 413
_OF_CONTENT = (400, TOO_LARGE, 415, 422)  # statuses that a server gives for what a request holds
_FIELD, _RESULT, _TOOL = "field ", "result ", "tool "  # beginnings of keys that are no block's own

_ABOUT_THINKING = re.compile(r"thinking|signature|reasoning", re.IGNORECASE)
_ABOUT_MEDIA = re.compile(r"image|media|vision|visual|multi-?modal|mmproj|pdf|document|base64|\bfile", re.IGNORECASE)
_ABOUT_CALLS = re.compile(r"\broles?\b|tool_(use|call|result)|template|jinja", re.IGNORECASE)
_ABOUT_RESULTS = re.compile(
    r"filter|polic|safety|moderat|sensitiv|inappropriate|inspection|\brisk|flagged|敏感|违规|风险|不安全", re.IGNORECASE
)
_ABOUT_FORM = re.compile(r"message|content|block|tool_", re.IGNORECASE)
_ABOUT_OTHERS = re.compile(  # an account, a model, a length: some services answer 400 for these too
    r"credit|balance|billing|quota|usage limit|api.?key|organi[sz]ation|account|location|region|\baccess\b"
    r"|max_(completion_)?tokens|model (id|name)|(unknown|invalid|unsupported) model"
    r"|model.{0,60}(not (supported|available)|unavailable|deprecated|retired)",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"https?://\S+")
_PLACE = re.compile(r"messages\W+(\d+)\W+content\W+(\d+)(?:\W+tool_result)?(?:\W+content\W+(\d+))?")
_ABOUT_SCHEMA = re.compile(r"schema|parameters|propert|declaration|definition", re.IGNORECASE)
_TOOL_INDEX = re.compile(r"\b(?:tools|function_declarations)\W{1,2}(\d+)\b")  # the last one is the innermost
_A_THOUGHT = re.compile(r"^$|'thinking'|'redacted_thinking'|'reasoning_|'encrypted_content'")  # in a body's messages
_REASONING = frozenset(("reasoning_details", "encrypted_content"))  # in a provider's own block
_NO_THINKING = r"not support.{0,40}thinking|thinking.{0,40}not support"
# Fields of a body that it can do without, and how a refusal names them.
_FIELDS = {
    name: re.compile(pattern or rf"\b{name}\b", re.IGNORECASE)
    for name, pattern in {
        "stream_options": "",
        "temperature": "",
        "reasoning_effort": r"\b(reasoning_)?effort\b",
        "reasoning": r"\breasoning[. ](effort|summar)|['\"`]reasoning['\"`]",
        "include": r"encrypted content is not supported",
        "output_config": r"\boutput_config\b|\beffort\b|json_schema",
        "response_format": r"\bresponse_format\b|json_schema",
        "text": r"\btext\.format\b|json_schema",
        "enable_thinking": "",
        "chat_template_kwargs": "",
        "thinking": _NO_THINKING,
        "think": _NO_THINKING,
        "parallel_tool_calls": "",
        "store": r"['\"`]store['\"`]|: store\b",
        "tools": r"\btools\b|support\w* (\w+ )?(tool|function)|tool (use|choice|calling).{0,60}(support|requires)",
    }.items()
}


class Way(NamedTuple):
    """How a refused request goes on, in words, and keys for `without`.

    One that `stands_alone` leaves the request as it was but for its own keys.
    """

    how: str
    keys: frozenset[str]
    stands_alone: bool = False


def blames_content(error: ProviderError) -> bool:
    """True if a refusal may be about what the request holds, and not about its address, its model or the account."""
    if not isinstance(error, BadRequest) or isinstance(error, ModelNotFound):
        return False
    if isinstance(error, ContextOverflow) or error.status == TOO_LARGE:
        return error.status == TOO_LARGE
    said = _said(error)
    if any(words.search(said) for words in (_ABOUT_THINKING, _ABOUT_MEDIA, _ABOUT_CALLS, _ABOUT_RESULTS)):
        return True
    if any(field in error.sent and words.search(said) for field, words in _FIELDS.items()):
        return True
    if _ABOUT_OTHERS.search(said):
        return False
    return error.status in _OF_CONTENT or bool(_ABOUT_FORM.search(said))


def ways(request: Request, error: ProviderError) -> list[Way]:
    """All ways in which a request that was refused could be taken, in the order in which to try them.

    Its words put first what they name, a single tool before all. Else reasoning goes first, then images and
    documents, the newest before all; calls follow, and last results, those first that are new since a request was
    taken.
    """
    said = _said(error)
    tools = _tools(request, error, said)
    if not blames_content(error):
        return tools
    new = request.messages[request.earlier_messages :]
    blocks = [block for message in request.messages for block in message.content]
    held = str(
        error.sent.get("messages") or error.sent.get("input", "")
    )  # without what the wire format left out; empty where nobody knows
    thoughts = [_key(block) for block in blocks if _is_thought(block)] if _A_THOUGHT.search(held) else []
    media = [key for key in map(_key, media_in(request.messages)) if key in held or not held]
    pictures = [
        *_named(media, error),
        ("without the newest image or document", media[-1:]),
        ("without new images and documents", [key for key in map(_key, media_in(new)) if key in media]),
        ("without images and documents", media),
    ]
    groups = [
        (_ABOUT_THINKING, [("without earlier reasoning", thoughts)]),
        (_ABOUT_MEDIA, pictures),
        (_ABOUT_CALLS, [("with earlier calls told as text", [b.id for b in blocks if isinstance(b, ToolUse)])]),
        (
            _ABOUT_RESULTS,
            [("without the newest results", _results(new)), ("without all results", _results(request.messages))],
        ),
    ]
    if error.status == TOO_LARGE:
        groups = [groups[1]] if isinstance(error, ContextOverflow) else [groups[1], groups[3]]
    groups.sort(key=lambda group: not group[0].search(said))
    # Of two with the same keys the later, wider words stay, at the place of the first.
    found = {frozenset(keys): how for _, group in groups for how, keys in group if keys}
    return [
        *tools,
        *_fields(error, said),
        *(Way(how, keys, how.endswith("results")) for keys, how in found.items()),
    ]


def _said(error: ProviderError) -> str:
    return _ADDRESS.sub("", f"{error.code} {error}")


def _results(messages: Iterable[Message]) -> list[str]:
    return [_RESULT + b.tool_use_id for message in messages for b in message.content if isinstance(b, ToolResult)]


def _tools(request: Request, error: ProviderError, said: str) -> list[Way]:
    """The way without the tool whose name, or whose place in the body, the refusal gives."""
    if not isinstance(error, BadRequest) or isinstance(error, ContextOverflow | ModelNotFound):
        return []
    names = [tool.name for tool in request.tools]
    sent = error.sent.get("tools")
    placed = [_tool_name(tool) for tool in sent] if isinstance(sent, list) else names
    found = [int(index) for index in _TOOL_INDEX.findall(said)][-1:]
    named = [placed[index] for index in found if index < len(placed)]
    if _ABOUT_SCHEMA.search(said):
        named += [name for name in names if re.search(_quoted(name), said)]
    return [Way(f"without the tool {name}", frozenset((_TOOL + name,))) for name in named[:1] if name in names]


def _quoted(name: str) -> str:
    """A pattern of a tool's name: in quotes, since many are words that a refusal may use; one of a server as it is."""
    bare = rf"|\b{re.escape(name)}\b" if name.startswith("mcp__") else ""
    return rf"(['\"`]){re.escape(name)}\1{bare}"


def _tool_name(tool: Any) -> str:
    function = tool.get("function", tool) if isinstance(tool, dict) else {}
    return str(function.get("name", "")) if isinstance(function, dict) else ""


def _fields(error: ProviderError, said: str) -> list[Way]:
    """Ways without the fields that were sent and that the refusal names."""
    named = (field for field, words in _FIELDS.items() if field in error.sent and words.search(said))
    more = {"tools": ("tools", "parallel_tool_calls")}
    return [
        Way(f"without {field}", frozenset(_FIELD + name for name in more.get(field, (field,))), stands_alone=True)
        for field in named
    ]


def _named(media: list[str], error: ProviderError) -> list[tuple[str, list[str]]]:
    """Of these media those at the place in the body that the refusal names."""
    if (place := _PLACE.search(str(error))) is None:
        return []
    part: Any = error.sent.get("messages")
    try:
        for number in filter(None, place.groups()):
            part = part[int(number)]
            part = part.get("content", part)
    except (LookupError, TypeError, AttributeError):
        return []
    held = str(part)
    return [(f"without what is at {place[0]}", [data for data in media if data in held])]


def without(request: Request, keys: Collection[str]) -> Request:
    """The request without what these keys name; a text stands for an image, a document, a result, a call."""
    request = replace(request, tools=tuple(tool for tool in request.tools if _TOOL + tool.name not in keys))
    unsent = frozenset(key.removeprefix(_FIELD) for key in keys if key.startswith(_FIELD))
    if all(key.startswith((_FIELD, _TOOL)) for key in keys):
        return replace(request, unsent=unsent) if unsent else request

    def named(block: Image | Document) -> Text | Image | Document:
        refused = Text(f"[{type(block).__name__} left out: the provider refused it]")
        return refused if _key(block) in keys else block

    messages = tuple(
        replace(
            message,
            content=tuple(_told(b, keys) for b in message.content if not (_is_thought(b) and _key(b) in keys)),
        )
        for message in with_media(request.messages, named)
    )
    return replace(request, messages=messages, unsent=unsent)


def _told(block: Block, keys: Collection[str]) -> Block:
    if isinstance(block, ToolResult) and _RESULT + block.tool_use_id in keys:
        block = replace(block, content="[The call was carried out; its result is left out: the provider refused it]")
    match block:
        case ToolUse(id, name, given) if id in keys:
            return Text(f"\n[called {name} with {encode_json(given).decode()}]")
        case ToolResult(id) if id in keys:
            return Text(f"[result{' (an error)' if block.is_error else ''}]\n{block.text}")
        case _:
            return block


def _is_thought(block: Block) -> bool:
    return isinstance(block, Thinking | RedactedThinking) or (
        isinstance(block, Opaque) and not _REASONING.isdisjoint(block.data)
    )


def _key(block: Block) -> str:
    match block:
        case Thinking(text, signature):
            return f"{signature} {text}"
        case RedactedThinking(data):
            return data
        case Image(source) | Document(source):
            return source.data
        case _:
            return repr(block)
