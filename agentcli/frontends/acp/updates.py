"""Converts events, tool calls and the entries of a stored conversation to `session/update`s."""

import asyncio
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from agentcli.agent import events
from agentcli.agent.state import SessionSnapshot, todo_items
from agentcli.conversation.entries import Assistant, Entry, Result, User
from agentcli.conversation.mentions import typed_blocks
from agentcli.frontends.printable import escape_hidden, fenced
from agentcli.llm.messages import Block, Image, Text, Thinking, ToolResult, ToolUse
from agentcli.patterns import lazy_pattern
from agentcli.tools.observation import call_title
from agentcli.tools.text.diff import path_of, sides_of_hunks, split_files

Update = dict[str, Any]

LIVE_INTERVAL_S = 0.25  # between two updates with the output of a running call
MAX_LIVE_CHARS = 8_000  # the end of such output that an update contains

KINDS = {  # tool name -> the protocol's kind of call
    "file_read": "read", "read_more": "read", "skill": "read", "file_write": "edit", "file_edit": "edit",
    "file_list": "search", "grep_search": "search", "recall": "search", "bash": "execute", "jobs": "execute",
    "think": "think", "todo": "think", "create_subagent": "think", "web_fetch": "fetch", "web_search": "fetch",
}  # fmt: skip
# Tools whose results are Markdown.
_MARKDOWN_TOOLS = frozenset(("create_subagent", "web_fetch", "web_search", "skill", "recall", "think", "ask_user"))
_FILE_TOOLS = frozenset(("file_read", "file_write", "file_edit", "file_list", "grep_search"))  # with a `path`
_CLAIM_LINES = {"verified": "✓ {}", "unverified": "? {} - not verified", "refuted": "✗ {} - the log says otherwise"}
_PROSE_TOOLS = frozenset(("", "create_subagent", "think", "ask_user"))  # their titles quote prose; "": a notice
_MARKUP = lazy_pattern(r"`+|(?<!\S)#{1,6} |\*\*(\w[^*]*)\*\*")  # does not match the stars of `src/**/*.py`


class Updates:
    """Converts one session's events to updates. `window` returns a model's window in tokens."""

    def __init__(self, cwd: Path, *, window: Callable[[str], int], shows_claims: bool) -> None:
        self._cwd = cwd
        self._window = window
        self._shows_claims = shows_claims
        self._message_id = ""  # of the reply being streamed
        self._announced_ids: set[str] = set()  # of calls that have not ended
        self.own_prompts: list[tuple[Block, ...]] = []  # from the client, which does not need them sent back

    def updates_for(self, event: events.Event) -> Iterator[Update]:
        match event:
            case events.ToolStarted(id, name, input):
                yield self._start_update(event.agent_id, id, name, input)
            case events.ToolFinished(id):
                client_id = call_id(event.agent_id, id)
                self._announced_ids.discard(client_id)
                yield call_end(client_id, event, self._cwd)
                if event.name == "todo" and isinstance(event.structured, dict) and event.agent_id == "main":
                    yield plan_update(event.structured.get("items", ()))
            case events.Notice(text):
                yield notice(text, "warning")
            case _ if event.agent_id == "main":
                yield from self._main_updates(event)

    def _main_updates(self, event: events.Event) -> Iterator[Update]:
        match event:
            case events.ReplyStarted():
                self._message_id = uuid.uuid4().hex
            case events.TextDelta(text):
                yield text_chunk("agent_message_chunk", text, self._message_id)
            case events.ThinkingDelta(text):
                yield text_chunk("agent_thought_chunk", text, f"{self._message_id}-thought")
            case events.EntryStored(entry):
                yield from self._entry_updates(entry)
            case events.UsageReported(usage, _, total, model, provider):
                yield usage_update(usage.context_tokens, self._window(f"{provider}/{model}"), total)
            case events.ModeChanged(mode):
                yield {"sessionUpdate": "current_mode_update", "currentModeId": mode}
            case events.Retry(number, delay_s, error):
                yield notice(f"{error} Retrying in {delay_s:.0f} s (retry {number}).", "warning")
            case events.ProviderSwitched(before, after):
                yield notice(f"Switched from {before} to {after}.", "warning")
            case events.Compaction(before, after):
                yield notice(f"Compacted the conversation from about {before:,} to {after:,} tokens.", "info")
            case events.Done(claims=claims) if self._shows_claims and claims:
                lines = [_CLAIM_LINES[claim.verdict].format(" ".join(claim.text.split())) for claim in claims]
                are_verified = all(claim.verdict == "verified" for claim in claims)
                yield notice("\n".join(("Claims checked:", *lines)), "info" if are_verified else "warning")

    def _start_update(self, agent_id: str, id: str, name: str, input: dict[str, Any]) -> Update:
        client_id = call_id(agent_id, id)
        if client_id in self._announced_ids:
            return call_update(client_id, status="in_progress")
        self._announced_ids.add(client_id)
        agent = "" if agent_id == "main" else agent_id
        return call_start(client_id, name, input, self._cwd, status="in_progress", agent=agent)

    def _entry_updates(self, entry: Entry) -> Iterator[Update]:
        """Announce the calls of a reply, and end a call that never started when its result is stored."""
        match entry.body:
            case Assistant(content=content):
                for block in content:
                    if isinstance(block, ToolUse):
                        self._announced_ids.add(block.id)
                        yield call_start(block.id, block.name, block.input, self._cwd, status="pending")
            case Result(result=result) as body if result.tool_use_id in self._announced_ids:
                self._announced_ids.discard(result.tool_use_id)
                yield call_end(result.tool_use_id, body, self._cwd)
            case User(content, is_reminder=False) if content in self.own_prompts:
                self.own_prompts.remove(content)  # only once: the same prompt may come again from elsewhere
            case User(content, is_reminder=False):
                yield from _prompt_chunks(content, entry.id)


def replay_updates(shown: SessionSnapshot, *, window: int) -> Iterator[Update]:
    """Yield the updates that show a stored conversation; `window` is that of its model, in tokens."""
    cwd, conversation = shown.workspace.cwd, shown.conversation
    for entry in conversation.path:
        match entry.body:
            case User(content, is_reminder=False):
                yield from _prompt_chunks(content, entry.id)
            case Assistant(content=content):
                yield from _reply_updates(content, entry.id, cwd)
            case Result() as body:
                yield call_end(body.result.tool_use_id, body, cwd)
    for id in conversation.open_calls:  # an earlier process ended while they were running
        yield call_update(id, status="failed")
    if items := todo_items(conversation.path):
        yield plan_update({"content": item.content, "status": item.status} for item in items)
    yield usage_update(shown.context_tokens, window, shown.cost_usd)


def _reply_updates(content: Sequence[Block], id: str, cwd: Path) -> Iterator[Update]:
    for block in content:
        match block:
            case Text(text) if text.strip():
                yield text_chunk("agent_message_chunk", text, id)
            case Thinking(text) if text.strip():
                yield text_chunk("agent_thought_chunk", text, f"{id}-thought")
            case ToolUse(call, name, input):
                yield call_start(call, name, input, cwd, status="pending")


def _prompt_chunks(content: Sequence[Block], id: str) -> Iterator[Update]:
    for block in typed_blocks(content):
        match block:
            case Text(text):
                yield text_chunk("user_message_chunk", text, id)
            case Image():
                yield {"sessionUpdate": "user_message_chunk", "content": _image(block), "messageId": id}


def text_chunk(kind: str, text: str, message_id: str) -> Update:
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}, "messageId": message_id}


def command_output(text: str) -> Update:
    return text_chunk("agent_message_chunk", f"{text}\n", uuid.uuid4().hex)


def notice(text: str, severity: Literal["info", "warning", "error"]) -> Update:
    """Return a notice, which is not part of the conversation; the first line of the text is its title."""
    title, _, rest = text.strip().partition("\n")
    below = {"description": rest} if rest else {}
    return {"sessionUpdate": "notice", "severity": severity, "title": plain_title(title), **below}


def notice_as_call(update: Update) -> Update:
    """Convert a notice to a completed call, for clients without notices: it must not look like the model's text."""
    call = {"sessionUpdate": "tool_call", "toolCallId": uuid.uuid4().hex, "kind": "other", "status": "completed"}
    content = [code_content(update["description"])] if "description" in update else []
    return {**call, "title": update["title"], "content": content, "_meta": {"agentcli": {"notice": update["severity"]}}}


def plan_update(items: Iterable[dict[str, Any]]) -> Update:
    entries = [{"content": item["content"], "priority": "medium", "status": item["status"]} for item in items]
    return {"sessionUpdate": "plan", "entries": entries}


def usage_update(tokens: int, window: int, cost_usd: float | None) -> Update:
    cost = {} if cost_usd is None else {"cost": {"amount": cost_usd, "currency": "USD"}}
    return {"sessionUpdate": "usage_update", "used": tokens, "size": window, **cost}


def call_id(agent_id: str, id: str) -> str:
    """Return a call's id for the client, prefixed for a subagent, whose ids may be the same as its parent's."""
    return id if agent_id == "main" else f"{agent_id}/{id}"


def plain_title(title: str, name: str = "") -> str:
    """Return a call's title as one plain line. Markup is removed from prose, but not from commands and patterns."""
    title = " ".join(escape_hidden(title).split())
    return _MARKUP.sub(r"\1", title) if name in _PROSE_TOOLS else title


def call_start(id: str, name: str, input: dict[str, Any], cwd: Path, *, status: str, agent: str = "") -> Update:
    """Announce a call; `agent` names the subagent that makes it."""
    title = plain_title(call_title(name, input), name)
    title = f"{agent}: {title}" if agent else title
    call = {"sessionUpdate": "tool_call", "toolCallId": id, "title": title, "kind": KINDS.get(name, "other")}
    return {**call, "status": status, "locations": _locations(name, input, cwd), "rawInput": input}


def call_update(id: str, **fields: Any) -> Update:
    return {"sessionUpdate": "tool_call_update", "toolCallId": id, **fields}


def call_end(id: str, call: events.ToolFinished | Result, cwd: Path) -> Update:
    """Report the result of a call: of a successful edit its diff, otherwise its content."""
    result, structured = call.result, call.structured
    fields: dict[str, Any] = {"status": "failed" if result.is_error else "completed"}
    diff = structured.get("diff") if isinstance(structured, dict) and not result.is_error else None
    if isinstance(diff, str) and (changes := file_diff(diff, cwd)):
        fields |= changes
    else:
        fields["content"] = list(_result_content(result, is_markdown=call.name in _MARKDOWN_TOOLS))
    return call_update(id, **fields)


def file_diff(diff: str, cwd: Path) -> dict[str, Any]:
    """Convert one file's diff to `content`, hunk by hunk, and `locations`; empty if the text is not a diff."""
    if not (path := path_of(diff)):
        return {}
    first_line = next((line for line, _, _ in sides_of_hunks(diff)), 1)  # 0 for an empty file
    return {"content": list(_diffs(diff, cwd)), "locations": [{"path": str(cwd / path), "line": max(1, first_line)}]}


def changes_content(text: str, cwd: Path) -> list[dict[str, Any]]:
    """Convert the changes of a dry run to content: the diffs of files, and any text before them."""
    content: list[dict[str, Any]] = []
    for part in split_files(text):
        content += _diffs(part, cwd) if path_of(part) else [code_content(escape_hidden(part))]
    return [*content, *hidden_characters(text)]


def hidden_characters(diff: str) -> list[dict[str, Any]]:
    """Return a diff a second time, with its hidden characters escaped; empty if an editor shows all of them."""
    shown = escape_hidden(diff)
    if shown == diff.replace("\r\n", "\n"):
        return []
    why = "The diff has invisible or misleading characters. Here they are escaped:"
    return [text_content(f"{why}\n{fenced(shown, 'diff')}")]


def text_content(text: str) -> dict[str, Any]:
    return {"type": "content", "content": {"type": "text", "text": text}}


def code_content(text: str, language: str = "") -> dict[str, Any]:
    return text_content(fenced(text, language))


def _diffs(diff: str, cwd: Path) -> Iterator[dict[str, Any]]:
    path = str(cwd / path_of(diff))
    for line, old, new in sides_of_hunks(diff):
        is_new = not old and line <= 1  # further down, a hunk without old lines only inserts
        yield {"type": "diff", "path": path, "oldText": None if is_new else old, "newText": new}


def _result_content(result: ToolResult, *, is_markdown: bool) -> Iterator[dict[str, Any]]:
    for part in (Text(result.content),) if isinstance(result.content, str) else result.content:
        match part:
            case Text(text) if text.strip():
                yield text_content(text) if is_markdown else code_content(text)
            case Image():
                yield {"type": "content", "content": _image(part)}


def _image(block: Image) -> dict[str, Any]:
    return {"type": "image", "mimeType": block.source.media_type, "data": block.source.data}


def _locations(name: str, input: dict[str, Any], cwd: Path) -> list[dict[str, Any]]:
    path, line = input.get("path"), input.get("offset")
    if name not in _FILE_TOOLS or not isinstance(path, str) or not path or "\0" in path:
        return []
    return [{"path": str(cwd / path), **({"line": line} if isinstance(line, int) and line > 0 else {})}]


class LiveOutput:
    """Sends the output of running calls as it arrives; each update replaces the previous one."""

    def __init__(self, send: Callable[[Update], None]) -> None:
        self._send = send
        self._texts: dict[str, str] = {}  # call id -> the end of its output
        self._due: dict[str, asyncio.TimerHandle] = {}  # call id -> its next update

    def add(self, id: str, text: str) -> None:
        self._texts[id] = (self._texts.get(id, "") + text)[-MAX_LIVE_CHARS:]
        if id not in self._due:
            self._due[id] = asyncio.get_running_loop().call_later(LIVE_INTERVAL_S, self._flush, id)

    def end(self, id: str) -> None:
        """Drop output that was not sent yet, because the call's result replaces it."""
        self._texts.pop(id, None)
        if timer := self._due.pop(id, None):
            timer.cancel()

    def close(self) -> None:
        for id in list(self._texts):
            self.end(id)

    def _flush(self, id: str) -> None:
        del self._due[id]
        self._send(call_update(id, content=[code_content(self._texts[id])]))
