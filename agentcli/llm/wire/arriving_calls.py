"""Puts the calls of a Chat Completions reply together; ids and indexes may be missing, repeated or all the same."""

from __future__ import annotations

from typing import Any

from agentcli.llm.json_text import encode_json
from agentcli.llm.messages import ToolUse
from agentcli.llm.provider import StreamEvent, ToolCallDelta, ToolCallEnded, ToolCallStarted
from agentcli.llm.wire.arguments import parse_arguments
from agentcli.llm.wire.call_ids import CallIds
from agentcli.llm.wire.deltas import text_in


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
        if index is None:
            known = self._calls[-1] if self._calls else None
        else:
            known = self._by_index.get(index)
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
            arguments = parse_arguments(call.arguments, was_cut=may_be_cut)
            if may_be_cut and (arguments is None or (was_cut and not call.arguments.strip())):
                return uses, True
            if arguments is None:
                uses.append(ToolUse(call.id, call.name, {}, unparsed=call.arguments))
            else:
                uses.append(ToolUse(call.id, call.name, arguments))
        return uses, False


class _Call:
    """A call that is still arriving. `id` is ours, `wire_id` the server's (which may come late or never)."""

    def __init__(self, id: str, wire_id: str) -> None:
        self.id = id
        self.wire_id = wire_id
        self.name = ""
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
