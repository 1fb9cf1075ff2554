"""Describes tool calls in the terms of the protocol: kind, location, diff, output."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from agentcli.agent.events import ToolFinished
from agentcli.conversation.entries import Result
from agentcli.frontends.printable import exposed
from agentcli.llm.messages import Image, Text, ToolResult
from agentcli.tools.summary import call_title
from agentcli.tools.text.diff import sides_of_hunks, split_files

STEP_S = 0.25  # between two updates of output that is still coming
MOST_SHOWN = 8_000  # characters of it: its end
LARGEST_RAW = 32 * 1024  # bytes of a structured result that goes along

_KINDS = {
    "file_read": "read", "read_more": "read", "skill": "read", "file_write": "edit", "file_edit": "edit",
    "file_list": "search", "grep_search": "search", "recall": "search", "bash": "execute", "jobs": "execute",
    "think": "think", "todo": "think", "create_subagent": "think", "web_fetch": "fetch", "web_search": "fetch",
}  # fmt: skip
_IN_MARKDOWN = frozenset(("create_subagent", "web_fetch", "web_search", "skill", "recall", "think", "ask_user"))
_OF_FILES = frozenset(("file_read", "file_write", "file_edit", "file_list", "grep_search"))
_TOLD = frozenset(("output", "text", "diff", "items", "matches", "paths"))  # of results: it is in their content
_FILE_NAMES = re.compile(r"--- (?:a/)?(.*)\n\+\+\+ (?:b/)?(.*)\n")


def call_id(agent_id: str, id: str) -> str:
    """The id of a call for the client; those of a subagent are told apart from its parent's."""
    return id if agent_id == "main" else f"{agent_id}/{id}"


def begun(id: str, name: str, input: dict[str, Any], cwd: Path, *, status: str, of: str = "") -> dict[str, Any]:
    """Announce a call; `of` names the subagent that makes it."""
    title = call_title(name, input)
    return {
        "sessionUpdate": "tool_call",
        "toolCallId": id,
        "title": f"{of}: {title}" if of else title,
        "kind": kind_of(name),
        "status": status,
        "locations": _locations(name, input, cwd),
        "rawInput": input,
    }


def updated(id: str, **fields: Any) -> dict[str, Any]:
    return {"sessionUpdate": "tool_call_update", "toolCallId": id, **fields}


def ended(id: str, call: ToolFinished | Result, cwd: Path) -> dict[str, Any]:
    """Report a call that has ended, with its result."""
    result, structured = call.result, call.structured
    fields: dict[str, Any] = {"status": "failed" if result.is_error else "completed"}
    diff = structured.get("diff") if isinstance(structured, dict) and not result.is_error else None
    if isinstance(diff, str) and (changes := file_diff(diff, cwd)):
        fields |= changes
    else:
        fields["content"] = _contents(result, is_markdown=call.name in _IN_MARKDOWN)
    if raw := _beside_content(structured):
        fields["rawOutput"] = raw
    return updated(id, **fields)


def kind_of(name: str) -> str:
    return _KINDS.get(name, "other")


def file_diff(diff: str, cwd: Path) -> dict[str, Any]:
    """Turn one file's diff into `content`, hunk by hunk, and `locations`; empty if the text is no diff."""
    if (head := _FILE_NAMES.match(diff)) is None:
        return {}
    content = list(_diffs(head, diff[head.end() :], cwd))
    first = next((line for line, _, _ in sides_of_hunks(diff[head.end() :])), 1)
    return {"content": content, "locations": [{"path": str(cwd / _path(head)), "line": max(1, first)}]}


def told_changes(text: str, cwd: Path) -> list[dict[str, Any]]:
    """Turn the changes that a person is asked about into content: the diffs of files, and any text before them."""
    content: list[dict[str, Any]] = []
    for part in split_files(text):
        if head := _FILE_NAMES.match(part):
            content += _diffs(head, part[head.end() :], cwd)
        else:
            content.append(text_content(fenced(exposed(part))))
    return [*content, *hidden_characters(text)]


def hidden_characters(diff: str) -> list[dict[str, Any]]:
    """Return a diff once more as text, with escapes, where an editor may not show all of it."""
    shown = exposed(diff)
    if shown == diff.replace("\r\n", "\n"):
        return []
    return [
        text_content(
            f"It has characters that cannot be seen or pass for others, here as escapes:\n{fenced(shown, 'diff')}"
        )
    ]


def text_content(text: str) -> dict[str, Any]:
    return {"type": "content", "content": {"type": "text", "text": text}}


def fenced(text: str, language: str = "") -> str:
    """A text as a block of code in Markdown."""
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text)), 3)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _diffs(head: re.Match[str], body: str, cwd: Path) -> Iterator[dict[str, Any]]:
    path = str(cwd / _path(head))
    for line, old, new in sides_of_hunks(body):
        is_new = not old and line <= 1
        yield {"type": "diff", "path": path, "oldText": None if is_new else old, "newText": new}


def _path(head: re.Match[str]) -> str:
    return head[1] if head[2] == "/dev/null" else head[2]


def _beside_content(structured: Any) -> Any:
    """Return the fields of a structured result that its content does not show; None if there are none, or too many."""
    if isinstance(structured, dict):
        structured = {name: value for name, value in structured.items() if name not in _TOLD}
    if not structured or len(encoded := msgspec.json.encode(structured, enc_hook=str)) > LARGEST_RAW:
        return None
    return msgspec.Raw(encoded)


def _contents(result: ToolResult, *, is_markdown: bool) -> list[dict[str, Any]]:
    parts = (Text(result.content),) if isinstance(result.content, str) else result.content
    content = []
    for part in parts:
        match part:
            case Text(text) if text.strip():
                content.append(text_content(text if is_markdown else fenced(text)))
            case Image(source):
                image = {"type": "image", "mimeType": source.media_type, "data": source.data}
                content.append({"type": "content", "content": image})
            case _:
                pass
    return content


def _locations(name: str, input: dict[str, Any], cwd: Path) -> list[dict[str, Any]]:
    path, line = input.get("path"), input.get("offset")
    if name not in _OF_FILES or not isinstance(path, str) or not path or "\0" in path:
        return []
    return [{"path": str(cwd / path), **({"line": line} if isinstance(line, int) and line > 0 else {})}]


class LiveOutput:
    """Streams the output of running calls; each update replaces the one before."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send
        self._heard: dict[str, str] = {}
        self._due: dict[str, asyncio.TimerHandle] = {}

    def heard(self, id: str, text: str) -> None:
        self._heard[id] = (self._heard.get(id, "") + text)[-MOST_SHOWN:]
        if id not in self._due:
            self._due[id] = asyncio.get_running_loop().call_later(STEP_S, self._tell, id)

    def ended(self, id: str) -> None:
        """The call's result stands in place of what was heard."""
        self._heard.pop(id, None)
        if timer := self._due.pop(id, None):
            timer.cancel()

    def close(self) -> None:
        for id in list(self._heard):
            self.ended(id)

    def _tell(self, id: str) -> None:
        del self._due[id]
        self._send(updated(id, content=[text_content(fenced(self._heard[id]))]))
