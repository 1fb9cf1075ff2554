"""Reads the calls of replies: ids that every API takes, arguments as models write them, calls that arrive in parts."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import warnings
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from agentcli.llm.json_text import encode_json, without_lone_surrogates
from agentcli.llm.messages import Message, ToolUse
from agentcli.llm.provider import StreamEvent, ToolCallDelta, ToolCallEnded, ToolCallStarted
from agentcli.llm.wire.deltas import text_in

LONGEST_NAME = 64
LONGEST_REPAIR = 4_096  # characters; repairing a cut 6 KB string took 21 ms, a missing brace in 12 KB 34 ms

_REFUSED_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_FENCE = re.compile(r"\A\s*```(?:json)?\s*(.*?)\s*```\s*\Z", re.DOTALL)
_TRAILING_COMMA = re.compile(r",(\s*[}\]])")


def plain_id(id: str, longest: int = 64) -> str:
    """A call's id as it is where an API takes it, else a hash of it, the same every time."""
    if 0 < len(id) <= longest and not _REFUSED_IN_NAMES.search(id):
        return id
    return "call_" + hashlib.sha256(id.encode()).hexdigest()[:24]


def plain_name(name: str) -> str:
    """A tool's name as it is where an API takes it. Models also call tools that nobody has, under any name."""
    return _REFUSED_IN_NAMES.sub("_", name)[:LONGEST_NAME] or "unknown"


class CallIds:
    """The ids of one reply's calls: the server's own, where it gives any and no other call has them."""

    def __init__(self, earlier: Iterable[Message] = (), *, prefix: str = "") -> None:
        self._earlier = earlier
        self._taken: set[str] | None = None  # looked up for the first call: most replies have none
        self._prefix = prefix or f"call_{secrets.token_hex(6)}_"
        self._count = 0

    def take(self, id: str = "") -> str:
        """`id`, or one made up where that is empty or taken."""
        if self._taken is None:
            self._taken = {use.id for message in self._earlier for use in message.tool_uses}
        number = self._count = self._count + 1
        while not id.strip() or id in self._taken:
            id = f"{self._prefix}{number}"
            number += 1
        self._taken.add(id)
        return id


def parse_arguments(text: str, *, was_cut: bool = False) -> dict[str, Any] | None:
    """The arguments as an object, or None. A call that was cut is never repaired: what is missing would be guessed."""
    if not text.strip():
        return {}
    value = _strict(text)
    if value is None and not was_cut:
        value = _lenient(text)
    if isinstance(value, str):  # encoded twice
        value = _strict(value)
    return without_lone_surrogates(value) if isinstance(value, dict) else None


def written_call(id: str, name: str, arguments: str, *, was_cut: bool = False) -> ToolUse:
    """Return a call with its arguments as an object, or as they were written where they are none."""
    given = parse_arguments(arguments, was_cut=was_cut)
    return ToolUse(id, name, {}, unparsed=arguments) if given is None else ToolUse(id, name, given)


def _strict(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=int)  # int raises ValueError for NaN and Infinity
    except (ValueError, RecursionError):
        return None


def _lenient(text: str) -> Any:
    import ast

    from json_repair import repair_json  # 9 ms, which only a broken call needs

    if fenced := _FENCE.match(text):
        text = fenced.group(1)
    for candidate in (text, _TRAILING_COMMA.sub(r"\1", text)):
        with suppress(ValueError, RecursionError):
            return json.loads(candidate, strict=False, parse_constant=lambda name: None)  # raw newlines in strings
    try:  # Python's own notation: single quotes, True, None
        with warnings.catch_warnings(action="ignore"):  # of escapes like \d, which would reach the terminal
            value = ast.literal_eval(text.strip())
        if isinstance(value, dict):
            return json.loads(json.dumps(value, allow_nan=False))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        pass
    ends_in_string = re.sub(r"\\.", "", text, flags=re.DOTALL).count('"') % 2 == 1
    if len(text) > LONGEST_REPAIR or ends_in_string:
        return None
    try:
        return repair_json(text, return_objects=True)
    except (ValueError, RecursionError):
        return None


_CALL_MARKS = (
    re.compile(r"<tool_call>\s*(\{.*?\})\s*(?:</tool_call>|\Z)", re.DOTALL),
    re.compile(r"\[TOOL_CALLS\]\s*(\[.*\]|\{.*\})", re.DOTALL),
    re.compile(r"```\w*\s*(\{.*?\})\s*```", re.DOTALL),
    re.compile(r"\A\s*(\{.*\})\s*\Z", re.DOTALL),
)


def calls_in_text(text: str, names: frozenset[str]) -> list[tuple[str, dict[str, Any]]]:
    """Calls of known tools that a model wrote as plain text: `<tool_call>`, `[TOOL_CALLS]`, a fenced or bare object."""
    for mark in _CALL_MARKS:
        found = []
        for written in mark.findall(text):
            value = _strict(written) or _lenient(written)
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


def call_events(call: ToolUse) -> list[StreamEvent]:
    """Return the events of a call that is known whole."""
    arguments = encode_json(call.input).decode()
    return [ToolCallStarted(call.id, call.name), ToolCallDelta(call.id, arguments), ToolCallEnded(call.id)]


class ArrivingCalls:
    """The calls of one reply, in the order they began."""

    def __init__(self, ids: CallIds) -> None:
        self._ids = ids
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def feed(self, data: dict[str, Any], out: list[StreamEvent]) -> str:
        """Take one entry of `tool_calls`; gives the id of its call."""
        function = data.get("function") or {}
        name = text_in(function.get("name"))
        arguments = function.get("arguments")
        if not isinstance(arguments, str | None):
            arguments = encode_json(arguments).decode()
        call = self._slot(data.get("index"), str(data.get("id") or ""), name, arguments or "")
        if name and name != call.name and not call.is_announced:
            call.name += name
        if arguments:
            call.announce(out)
            call.parts.append(arguments)
            out.append(ToolCallDelta(call.id, arguments))
        return call.id

    def _slot(self, index: int | None, id: str, name: str, arguments: str) -> _Call:
        """The call an entry belongs to."""
        known = self._by_index.get(index) if index is not None else self._calls[-1] if self._calls else None
        if known is None:
            is_another = True
        elif id and known.wire_id:
            is_another = id != known.wire_id
        else:  # a name begins a call, unless it continues or repeats the one before
            is_another = bool(name) and (
                (index is None and name != known.name) or (bool(arguments.strip()) and known.is_whole())
            )
        if known is None or is_another:
            known = _Call(self._ids.take(id), id)
            self._calls.append(known)
        if index is not None:
            self._by_index[index] = known
        known.wire_id = known.wire_id or id
        return known

    def is_whole(self) -> bool:
        """True if the last call looks whole."""
        return self._calls[-1].is_whole()

    def end(self, out: list[StreamEvent], *, was_cut: bool, is_finished: bool) -> tuple[list[ToolUse], bool]:
        """All whole calls; True if the last one was lost because the reply was cut inside it."""
        for call in self._calls:
            call.announce(out)
            out.append(ToolCallEnded(call.id))
        uses: list[ToolUse] = []
        for position, call in enumerate(self._calls, 1):
            may_be_cut = (was_cut or not is_finished) and position == len(self._calls)
            use = written_call(call.id, call.name, call.arguments, was_cut=may_be_cut)
            if may_be_cut and (use.unparsed or (was_cut and not call.arguments.strip())):
                return uses, True
            uses.append(use)
        return uses, False


class _Call:
    """A call that is still arriving. `id` is ours, `wire_id` the server's (which may come late or never)."""

    def __init__(self, id: str, wire_id: str) -> None:
        self.id, self.wire_id, self.name = id, wire_id, ""
        self.parts: list[str] = []
        self.is_announced = False

    @property
    def arguments(self) -> str:
        return "".join(self.parts)

    def announce(self, out: list[StreamEvent]) -> None:
        """Tell once that the call has begun."""
        if not self.is_announced:
            self.is_announced = True
            out.append(ToolCallStarted(self.id, self.name))

    def is_whole(self) -> bool:
        looks_whole = bool(self.parts) and self.parts[-1].rstrip().endswith("}")
        return looks_whole and parse_arguments(self.arguments, was_cut=True) is not None
