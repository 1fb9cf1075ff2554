"""The parts of a reply that all wire formats share: text and reasoning, tool calls, and joined deltas.

Models write reasoning into their text and arguments that are not JSON; servers split calls over many events, name
calls late or never, and use one id twice. The readers of the wire formats leave all of that to this module.
"""

import hashlib
import os
import re
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count, groupby
from typing import Any, Literal

from agentcli.llm.errors import ProviderError, ServerError
from agentcli.llm.messages import Block, Text, Thinking, ToolUse, encode_json, without_lone_surrogates
from agentcli.llm.provider import StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta, ToolCallEnded, ToolCallStarted
from agentcli.patterns import lazy_pattern

MAX_REPAIR_CHARS = 4_096  # to add a missing brace to 12 KB took 34 ms
OPEN, CLOSE = "<think>", "</think>"
_NOT_IN_NAMES = lazy_pattern(r"[^A-Za-z0-9_-]")
_ANY_TAG = lazy_pattern("</?think>")
_FENCED = lazy_pattern(r"\s*```(?:json)?\s*(.*?)\s*```\s*", re.DOTALL)  # arguments in a code block
_TRAILING_COMMA = lazy_pattern(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])', re.DOTALL)  # strings are kept as they are
_BEFORE_A_WORD = frozenset(" \t`'\"(“‘")  # after one of these, a tag is only mentioned
# The forms in which models write calls as plain text.
_CALL_FORMS = (
    lazy_pattern(r"<tool_call>\s*(\{.*?\})\s*(?:</tool_call>|\Z)", re.DOTALL),
    lazy_pattern(r"\[TOOL_CALLS\]\s*(\[.*\]|\{.*\})", re.DOTALL),
    lazy_pattern(r"```\w*\s*(\{.*?\})\s*```", re.DOTALL),
    lazy_pattern(r"\A\s*(\{.*\})\s*\Z", re.DOTALL),
)


def read_items(
    items: Iterable[Any], feed: Callable[[Any, list[StreamEvent]], None]
) -> tuple[list[StreamEvent], ProviderError | None]:
    """Feed the items of one piece to a reader; return its events, and the failure after them, to be raised later."""
    out: list[StreamEvent] = []
    failure: ProviderError | None = None
    try:
        for item in items:
            feed(item, out)
    except ProviderError as error:
        failure = error
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        failure = ServerError(f"The server sent an event that its protocol does not know: {error}")
        failure.__cause__ = error
    return join_deltas(out), failure


def text_in(value: Any) -> str:
    """Return a text that a server sent; empty for null. Raises `TypeError` for any other value."""
    if isinstance(value, str | None):
        return value or ""
    raise TypeError(f"{value!r} is not a text")


def count_in(value: Any) -> int:
    """Return a count that a server sent; 0 for anything but a positive number."""
    return int(value) if isinstance(value, int | float) and 0 < value < float("inf") else 0


def join_deltas(events: list[StreamEvent]) -> list[StreamEvent]:
    """Return the events with neighbouring deltas of one kind (and one call) joined: a piece then costs one event."""
    if len(events) < 2:
        return events
    joined: list[StreamEvent] = []
    for kind, group in groupby(events, type):  # each delta comes here, so the loops are those of C
        if kind is TextDelta or kind is ThinkingDelta:
            joined.append(kind("".join([event.text for event in group])))  # type: ignore[union-attr]
        elif kind is ToolCallDelta:
            for id, deltas in groupby(group, lambda delta: delta.id):  # type: ignore[union-attr]
                joined.append(ToolCallDelta(id, "".join([delta.partial_json for delta in deltas])))  # type: ignore[union-attr]
        else:
            joined += group
    return joined


class ArrivingBlock:
    """A block of a reply that is still arriving. `start` holds the fields it began with, `id` is the id of a call."""

    def __init__(self, start: dict[str, Any], id: str = "") -> None:
        self.start, self.id, self.kind = start, id, str(start.get("type") or "")
        self.parts: list[str] = []  # pieces of its text, thinking or arguments
        self.is_whole = False  # True once the server has ended it

    @property
    def text(self) -> str:
        return "".join(self.parts)

    def add(self, text: str, out: list[StreamEvent]) -> None:
        """Add a piece of text and append its event. An empty text or another kind of block has no event."""
        if not text:
            return
        self.parts.append(text)
        match self.kind:
            case "text" | "message":
                out.append(TextDelta(text))
            case "thinking" | "reasoning":
                out.append(ThinkingDelta(text))
            case "tool_use" | "function_call":
                out.append(ToolCallDelta(self.id, text))


class Prose:
    """The text and the reasoning of one reply, which servers send separately or as `<think>…</think>` in the text.

    A tag may be split over chunks, and the opening tag may be missing. Only a tag that begins the reply opens
    reasoning, unless the reply `begins_inside` it. One `</think>` ends the reasoning; without an opening tag, all text
    before it was reasoning. A closing tag that follows a space or quote, and has no opening tag, is text.
    """

    def __init__(self, *, begins_inside: bool = False) -> None:
        self.text, self.thinking = list[str](), list[str]()
        self._held = ""  # the end of the text so far, if it may be the beginning of a tag
        self._part: Literal["start", "thinking", "text"] = "start"  # what is arriving; "start": only white space so far
        self._began_inside = begins_inside  # True in reasoning that began without a tag, until a tag closes it
        self._skips_newlines = False  # True after a tag, until other text arrives
        self._expects_tag = True  # False after the first tag that does not begin the reply: no later one is read
        self._last_char = ""  # the character before `_held`

    def add_thinking(self, thought: str, out: list[StreamEvent]) -> None:
        """Add reasoning that the server sends separately. A tag in the text is then part of the answer."""
        if self._part == "start" or self._began_inside:
            self._part, self._began_inside = "text", False
        self.thinking.append(thought)
        out.append(ThinkingDelta(thought))

    def add(self, text: str, out: list[StreamEvent]) -> None:
        """Add text that may contain tags; append events for as much as is known to be reasoning or the answer.

        The rest, such as the beginning of a tag, stays in `_held` until more text arrives.
        """
        is_plain = self._part == "text" and not self._held and not self._skips_newlines
        if is_plain and (not self._expects_tag or "<" not in text):
            self._emit(text, out)
            return
        self._held += text
        first_event = len(out)  # a tag may show that the text in the events from here on was reasoning
        while self._held:
            if self._skips_newlines:  # newlines after a tag belong to neither part
                self._held = self._held.lstrip("\n")
                self._skips_newlines = not self._held
            elif self._part == "start":  # only here can a tag open reasoning
                begun = self._held.lstrip()
                if OPEN.startswith(begun) and begun != OPEN:
                    break  # the rest of the tag may still come
                has_tag = begun.startswith(OPEN)
                self._part = "thinking" if has_tag or self._began_inside else "text"
                if has_tag:
                    self._held, self._skips_newlines, self._began_inside = begun.removeprefix(OPEN), True, False
            elif not self._emit_to_tag(out, first_event):
                break

    def _emit_to_tag(self, out: list[StreamEvent], first_event: int) -> bool:
        """Emit held text up to the next tag; False if more must come. In `out`, new events begin at `first_event`."""
        if not self._expects_tag:  # after the beginning, only one tag is read
            self._emit_held(len(self._held), out)
            return True
        is_thinking = self._part == "thinking"
        tag = re.search(CLOSE, self._held) if is_thinking else _ANY_TAG.search(self._held)
        if tag is None:  # the beginning of one may be at the end
            self._emit_held(len(self._held) - max(_overlap(self._held, OPEN), _overlap(self._held, CLOSE)), out)
            return False
        self._emit_held(tag.start(), out)
        self._expects_tag = False
        ends_reasoning = is_thinking or (tag[0] == CLOSE and self._last_char not in _BEFORE_A_WORD)
        if ends_reasoning:  # any other tag stays held, and the next call emits it as text
            self._held, self._skips_newlines = self._held.removeprefix(CLOSE), True
            self._part, self._began_inside = "text", False
            if not is_thinking:  # the text before the tag was reasoning
                self.thinking += self.text
                self.text.clear()
                # The events of earlier texts were sent, but not those of the new one: they become reasoning, too.
                out[first_event:] = [ThinkingDelta(e.text) for e in out[first_event:] if isinstance(e, TextDelta)]
        return True

    def _emit_held(self, size: int, out: list[StreamEvent]) -> None:
        piece, self._held = self._held[:size], self._held[size:]
        if piece:
            self._emit(piece, out)

    def _emit(self, piece: str, out: list[StreamEvent]) -> None:
        is_thinking = self._part == "thinking"
        (self.thinking if is_thinking else self.text).append(piece)
        out.append(ThinkingDelta(piece) if is_thinking else TextDelta(piece))
        self._last_char = piece[-1:]

    def close(self, out: list[StreamEvent]) -> None:
        self._emit_held(len(self._held), out)

    def use_reasoning_as_text(self, out: list[StreamEvent]) -> None:
        """Make the reasoning of a complete reply its text if no tag opened or closed it: it was the answer."""
        if self._began_inside and self.thinking:
            self.text, self.thinking = self.thinking, []
            out.append(TextDelta("".join(self.text)))

    def blocks(self, *between: Block) -> list[Block]:
        """Return the reasoning, the blocks `between`, and the text."""
        thinking, text = "".join(self.thinking), "".join(self.text)
        return [*([Thinking(thinking)] if thinking else []), *between, *([Text(text)] if text else [])]


def _overlap(text: str, tag: str) -> int:
    """Return how many characters at the end of `text` could begin `tag`."""
    return next((size for size in range(min(len(text), len(tag) - 1), 0, -1) if tag.startswith(text[-size:])), 0)


def plain_id(id: str, max_chars: int = 64) -> str:
    """Return a call's id if every API accepts it, else its hash, the same every time."""
    if 0 < len(id) <= max_chars and not _NOT_IN_NAMES.search(id):
        return id
    return "call_" + hashlib.sha256(id.encode()).hexdigest()[:24]


def plain_name(name: str) -> str:
    """Return a tool's name in a form that every API accepts; models also call tools that do not exist, by any name."""
    return _NOT_IN_NAMES.sub("_", name)[:64] or "unknown"


class CallIds:
    """The ids of one reply's calls: the server's own, unless it is missing or another call has it."""

    def __init__(self, earlier_ids: Callable[[], set[str]] = set, *, prefix: str = "") -> None:
        self._earlier_ids = earlier_ids  # returns the ids of earlier replies' calls
        self._taken: set[str] | None = None  # looked up for the first call: most replies have none
        self._prefix = prefix or f"call_{os.urandom(6).hex()}_"
        self._numbers = count(1)

    def take(self, id: str = "") -> str:
        """Return `id`, or a new one if it is empty or taken."""
        if self._taken is None:
            self._taken = self._earlier_ids()
        number = next(self._numbers)
        while not id.strip() or id in self._taken:
            id = f"{self._prefix}{number}"
            number += 1
        self._taken.add(id)
        return id


def parse_arguments(text: str, *, was_cut: bool = False) -> dict[str, Any] | None:
    """Return a call's arguments; None if they are not an object. Those of a call that `was_cut` are not repaired."""
    if not text.strip():
        return {}
    value = _parse_json(text)
    value = _repair_json(text) if value is None and not was_cut else value
    if isinstance(value, str):  # encoded twice
        value = _parse_json(value)
    return without_lone_surrogates(value) if isinstance(value, dict) else None


def parse_call(id: str, name: str, arguments: str, *, was_cut: bool = False) -> ToolUse:
    """Return a call with these arguments. If they are not an object, they are kept as text in `unparsed`."""
    input = parse_arguments(arguments, was_cut=was_cut)
    return ToolUse(id, name, {}, unparsed=arguments) if input is None else ToolUse(id, name, input)


def _parse_json(text: str) -> Any:
    import json

    try:
        return json.loads(text, parse_constant=int)  # int raises ValueError for NaN and Infinity
    except (ValueError, RecursionError):
        return None


def _repair_json(text: str) -> Any:
    """Return the value that broken JSON must mean, by the strictest reading; None if that would be a guess."""
    import ast
    import json

    from json_repair import repair_json  # 9 ms, which only a broken call needs

    if fenced := _FENCED.fullmatch(text):
        text = fenced[1]
    for candidate in (text, _TRAILING_COMMA.sub(r"\1", text)):
        with suppress(ValueError, RecursionError):
            # `strict=False` takes raw line ends in strings, which `repair_json` below would drop. NaN becomes null.
            return json.loads(candidate, strict=False, parse_constant=lambda name: None)
    with (
        suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError),
        warnings.catch_warnings(action="ignore"),  # of escapes like \d, which would reach the terminal
    ):
        value = ast.literal_eval(text.strip())  # Python's own notation: single quotes, True, None
        if isinstance(value, dict):
            return json.loads(json.dumps(value, allow_nan=False))
    # A string without its end is not repaired, because the missing part of a file or a command would be a guess.
    ends_in_string = re.sub(r"\\.", "", text, flags=re.DOTALL).count('"') % 2 == 1
    if len(text) > MAX_REPAIR_CHARS or ends_in_string:
        return None
    with suppress(ValueError, RecursionError):
        return repair_json(text, return_objects=True)
    return None


def calls_in_text(text: str, names: frozenset[str]) -> list[tuple[str, dict[str, Any]]]:
    """Return the names and arguments of the calls of known tools that a model wrote as text, all in the same form."""
    for form in _CALL_FORMS:
        found = []
        for written in form.findall(text):
            value = _parse_json(written) or _repair_json(written)
            for call in value if isinstance(value, list) else [value]:
                name = call.get("name") if isinstance(call, dict) else None
                if isinstance(name, str) and name in names:
                    arguments = call.get("arguments", call.get("parameters", {}))
                    arguments = parse_arguments(arguments) if isinstance(arguments, str) else arguments
                    if isinstance(arguments, dict):
                        found.append((name, without_lone_surrogates(arguments)))
        if found:
            return found
    return []


def call_events(call: ToolUse) -> tuple[ToolCallStarted, ToolCallDelta, ToolCallEnded]:
    arguments = ToolCallDelta(call.id, encode_json(call.input).decode())
    return ToolCallStarted(call.id, call.name), arguments, ToolCallEnded(call.id)


class ArrivingCalls:
    """The calls of one reply that arrive in parts, in the order they began."""

    def __init__(self, ids: CallIds) -> None:
        self._ids = ids
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}  # the newest call of each index

    def feed(self, data: dict[str, Any], out: list[StreamEvent]) -> str:
        """Add one entry of `tool_calls`, and return the id of its call."""
        function = data.get("function") or {}
        name = text_in(function.get("name"))
        arguments = function.get("arguments")
        if not isinstance(arguments, str | None):
            arguments = encode_json(arguments).decode()
        call = self._call_for(data.get("index"), str(data.get("id") or ""), name, arguments or "")
        if name and name != call.name and not call.is_announced:  # a name may come in pieces, or again and again
            call.name += name
        if arguments:
            call.announce(out)
            call.add(arguments, out)
        return call.id

    def _call_for(self, index: int | None, id: str, name: str, arguments: str) -> "_Call":
        """Return the call that a delta continues (without an index, only the newest), or a new one that it begins."""
        call = self.newest if index is None else self._by_index.get(index)
        if call is not None and id and call.wire_id:
            call = call if id == call.wire_id else None
        elif call is not None and name:  # there are no two ids to compare
            has_other_name = index is None and name != call.name  # with an index, it may be a piece of the name
            # Some servers use one index for all calls, so arguments after complete ones belong to a new call.
            begins_again = bool(arguments.strip()) and call.is_complete
            call = None if has_other_name or begins_again else call
        if call is None:
            call = _Call(self._ids.take(id), id)
            self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        call.wire_id = call.wire_id or id
        return call

    @property
    def newest(self) -> "_Call | None":
        return self._calls[-1] if self._calls else None

    def end(self, out: list[StreamEvent], *, was_cut: bool, has_finish_reason: bool) -> tuple[list[ToolUse], bool]:
        """Return the complete calls, and True if the last one was lost because the reply was cut inside it."""
        for call in self._calls:
            call.announce(out)
            out.append(ToolCallEnded(call.id))
        if not self._calls:
            return [], False
        *others, last = self._calls
        uses = [parse_call(call.id, call.name, call.text) for call in others]
        may_be_cut = was_cut or not has_finish_reason
        use = parse_call(last.id, last.name, last.text, was_cut=may_be_cut)
        # At the token limit, empty arguments were still to come; otherwise they mean a call without arguments.
        if may_be_cut and (use.unparsed or (was_cut and not last.text.strip())):
            return uses, True
        return [*uses, use], False


class _Call(ArrivingBlock):
    """A call that is still arriving. `id` is ours, `wire_id` the server's, which may come late or never."""

    def __init__(self, id: str, wire_id: str) -> None:
        super().__init__({"type": "function_call"}, id)
        self.wire_id, self.name, self.is_announced = wire_id, "", False

    def announce(self, out: list[StreamEvent]) -> None:
        if not self.is_announced:
            self.is_announced = True
            out.append(ToolCallStarted(self.id, self.name))

    @property
    def is_complete(self) -> bool:
        looks_complete = bool(self.parts) and self.parts[-1].rstrip().endswith("}")
        return looks_complete and parse_arguments(self.text, was_cut=True) is not None
