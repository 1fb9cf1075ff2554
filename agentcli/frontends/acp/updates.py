"""Turns events, and the entries of a stored conversation, into `session/update`s."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from agentcli.agent import events
from agentcli.agent.snapshot import SessionSnapshot
from agentcli.agent.todo import todo_items
from agentcli.conversation.entries import Assistant, Entry, Result, User
from agentcli.conversation.evidence import Claim
from agentcli.conversation.mentions import typed_blocks
from agentcli.frontends.acp.tool_calls import begun, call_id, ended, updated
from agentcli.llm.messages import Block, Image, Text, Thinking, ToolUse

Update = dict[str, Any]


class Updates:
    """Follows one session. `window` gives the window of `provider/model` in tokens.

    Prompts listed in `said` came from the client and are not sent back to it.
    """

    def __init__(self, cwd: Path, *, window: Callable[[str], int], shows_claims: bool) -> None:
        self._cwd = cwd
        self._window = window
        self._shows_claims = shows_claims
        self._message = ""  # the id of the one that comes
        self._open: set[str] = set()  # calls that were announced and have not ended
        self.said: list[tuple[Block, ...]] = []

    def of(self, event: events.Event) -> Iterator[Update]:
        match event:
            case events.ToolStarted(id, name, input):
                yield self._started(event.agent_id, id, name, input)
            case events.ToolFinished(id):
                self._open.discard(key := call_id(event.agent_id, id))
                yield ended(key, event, self._cwd)
                if event.name == "todo" and isinstance(event.structured, dict) and event.agent_id == "main":
                    yield plan(event.structured.get("items", ()))
            case events.Notice(text):
                yield notice(text)
            case _ if event.agent_id == "main":
                yield from self._of_main(event)
            case _:
                pass

    def _of_main(self, event: events.Event) -> Iterator[Update]:
        match event:
            case events.ReplyStarted():
                self._message = uuid.uuid4().hex
            case events.TextDelta(text):
                yield chunk("agent_message_chunk", text, self._message)
            case events.ThinkingDelta(text):
                yield chunk("agent_thought_chunk", text, f"{self._message}-thought")
            case events.EntryStored(entry):
                yield from self._of_entry(entry)
            case events.UsageReported(usage, _, total, model, provider):
                yield used(usage.context_tokens, self._window(f"{provider}/{model}"), total)
            case events.ModeChanged(mode):
                yield {"sessionUpdate": "current_mode_update", "currentModeId": mode}
            case events.Retry(number, delay_s, error):
                yield notice(f"{error} Trying again in {delay_s:.0f} s (retry {number}).")
            case events.ProviderSwitched(before, after):
                yield notice(f"Went from {before} to {after}.")
            case events.Compaction(before, after):
                yield notice(f"The conversation was shortened from about {before:,} to {after:,} tokens.")
            case events.Done(claims=claims) if self._shows_claims and claims:
                yield notice("\n".join(_told(claim) for claim in claims))
            case _:
                pass

    def _started(self, agent_id: str, id: str, name: str, input: dict[str, Any]) -> Update:
        key = call_id(agent_id, id)
        if key in self._open:
            return updated(key, status="in_progress")
        self._open.add(key)
        return begun(key, name, input, self._cwd, status="in_progress", of="" if agent_id == "main" else agent_id)

    def _of_entry(self, entry: Entry) -> Iterator[Update]:
        """Calls are announced with their reply; those that never began end with their result."""
        match entry.body:
            case Assistant(content):
                for block in content:
                    if isinstance(block, ToolUse):
                        self._open.add(block.id)
                        yield begun(block.id, block.name, block.input, self._cwd, status="pending")
            case Result(result) as made if result.tool_use_id in self._open:
                self._open.discard(result.tool_use_id)
                yield ended(result.tool_use_id, made, self._cwd)
            case User(content, is_reminder=False):
                if content in self.said:
                    self.said.remove(content)
                else:
                    yield from _typed(content, entry.id)
            case _:
                pass


def replayed(shown: SessionSnapshot, *, window: int) -> Iterator[Update]:
    """Replay a whole conversation as updates."""
    cwd, conversation = shown.workspace.cwd, shown.conversation
    for entry in conversation.path:
        match entry.body:
            case User(content, is_reminder=False):
                yield from _typed(content, entry.id)
            case Assistant(content):
                yield from _answered(content, entry.id, cwd)
            case Result() as made:
                yield ended(made.result.tool_use_id, made, cwd)
            case _:
                pass
    for id in conversation.open_calls:  # the program ended while they ran
        yield updated(id, status="failed")
    if items := todo_items(conversation.path):
        yield plan([{"content": item.content, "status": item.status} for item in items])
    yield used(shown.context_tokens, window, shown.cost_usd)


def _answered(content: Sequence[Block], id: str, cwd: Path) -> Iterator[Update]:
    for block in content:
        match block:
            case Text(text) if text.strip():
                yield chunk("agent_message_chunk", text, id)
            case Thinking(text) if text.strip():
                yield chunk("agent_thought_chunk", text, f"{id}-thought")
            case ToolUse(call, name, input):
                yield begun(call, name, input, cwd, status="pending")
            case _:
                pass


def _typed(content: Sequence[Block], id: str) -> Iterator[Update]:
    for block in typed_blocks(content):
        match block:
            case Text(text):
                yield chunk("user_message_chunk", text, id)
            case Image(source):
                image = {"type": "image", "mimeType": source.media_type, "data": source.data}
                yield {"sessionUpdate": "user_message_chunk", "content": image, "messageId": id}
            case _:
                pass


def chunk(kind: str, text: str, message_id: str) -> Update:
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}, "messageId": message_id}


def notice(text: str) -> Update:
    """Something the person should know, as a message of its own."""
    return chunk("agent_message_chunk", f"{text}\n", uuid.uuid4().hex)


def plan(items: Sequence[dict[str, Any]]) -> Update:
    """The model's list of tasks, whose states have the protocol's names; it knows no priorities."""
    entries = [{"content": item["content"], "priority": "medium", "status": item["status"]} for item in items]
    return {"sessionUpdate": "plan", "entries": entries}


def used(tokens: int, window: int, cost_usd: float | None) -> Update:
    cost = {} if cost_usd is None else {"cost": {"amount": cost_usd, "currency": "USD"}}
    return {"sessionUpdate": "usage_update", "used": tokens, "size": window, **cost}


_MARKS = {"verified": ("✓", ""), "unverified": ("?", " - not verified"), "refuted": ("✗", " - the log says otherwise")}


def _told(claim: Claim) -> str:
    mark, why = _MARKS[claim.verdict]
    return f"- {mark} {' '.join(claim.text.split())}{why}"
