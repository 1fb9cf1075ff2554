"""Reads the conversations that Claude Code and Codex have stored, as far as a model can go on from them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field

from agentcli.conversation.history import counted
from agentcli.errors import UserError
from agentcli.frontends.json_input import MAX_LINE_BYTES, check_media, json_in
from agentcli.llm.messages import Base64Source, Block, Document, Image, Role, Text, Thinking, ToolResult, ToolUse
from agentcli.llm.wire.reply_parts import parse_arguments

# Texts that a tool sends as the user's, about its surroundings or about a command of its own.
_NOTES = re.compile(
    r"\s*(<(command-name|command-message|local-command-\w+|bash-\w+|system-reminder|environment_context"
    r"|user_instructions|permissions instructions|skill|turn_aborted)\b|# AGENTS\.md instructions)"
)


class OtherMessage(Struct):
    """A message of another tool; its calls have that tool's names. A note is not from the person."""

    role: Role
    content: list[Block]
    is_note: bool = False
    reply: str = ""  # an id of the reply, whose blocks are stored one by one


class OtherTranscript(Struct, kw_only=True):
    """A conversation of another tool, with the results of its calls by the ids of the calls.

    `model` is `provider/model`; `left_out` names what did not come over.
    """

    tool: Literal["Claude Code", "Codex"]
    id: str = ""
    cwd: str = ""
    model: str = "unknown/unknown"
    messages: list[OtherMessage] = field(default_factory=list)
    results: dict[str, ToolResult] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def add_reply(self, reply: str, blocks: Iterable[Block]) -> None:
        content = [block for block in blocks if not isinstance(block, Thinking) or block.thinking.strip()]
        if self.messages and self.messages[-1].reply == reply:
            self.messages[-1].content += content
        elif content:
            self.messages.append(OtherMessage("assistant", content, reply=reply))

    def add_prompt(self, content: Any, *, is_note: bool = False) -> None:
        parts = list(_parts(content))
        is_note = is_note or all(isinstance(part, Text) and _NOTES.match(part.text) for part in parts)
        if parts:
            self.messages.append(OtherMessage("user", [*parts], is_note))

    def add_result(self, id: str, content: Any, *, is_error: bool) -> None:
        self.results[id] = ToolResult(id, tuple(_parts(content)), is_error)


def read_transcript(file: Path) -> OtherTranscript:
    """Return the conversation in a file of either tool. Raises `UserError`."""
    lines, damaged, damaged_bytes = list[dict[str, Any]](), 0, 0
    try:
        with file.open("rb") as source:
            while raw := source.readline(MAX_LINE_BYTES + 1):
                try:
                    if isinstance(line := json_in(raw), dict):
                        lines.append(line)
                except ValueError:
                    damaged, damaged_bytes = damaged + 1, damaged_bytes + len(raw)
    except OSError as error:
        raise UserError(f"Could not read {file}: {error.strerror}.") from error
    is_codex = any(line.get("type") in ("session_meta", "response_item") for line in lines)
    transcript = _read_codex(lines) if is_codex else _read_claude(lines)
    if damaged:
        transcript.left_out.append(f"{counted(damaged, 'damaged line')} of {damaged_bytes:,} bytes")
    if not transcript.messages:
        raise UserError(f"{file} holds no conversation of Claude Code or Codex.")
    return transcript


# Claude Code


def _read_claude(lines: list[dict[str, Any]]) -> OtherTranscript:
    """Read the newest branch: from its last line back along `parentUuid`, to the newest compaction or the beginning."""
    found = OtherTranscript(tool="Claude Code")
    main = [line for line in lines if isinstance(line.get("uuid"), str) and not line.get("isSidechain")]
    on_branch, elsewhere = _newest_branch(main), 0
    for line in main:
        message = line.get("message")
        if line.get("type") not in ("user", "assistant") or not isinstance(message, dict):
            continue
        content = message.get("content")
        for block in _tables(content):  # calls that ran together have results beside the branch
            match block:
                case {"type": "tool_result", "tool_use_id": str(id)}:
                    found.add_result(id, block.get("content"), is_error=block.get("is_error") is True)
        if line["uuid"] not in on_branch:
            elsewhere += bool([*_parts(content)])
        elif line["type"] == "user":
            found.add_prompt(content, is_note=bool(line.get("isMeta") or line.get("isCompactSummary")))
        elif not line.get("isApiErrorMessage"):
            found.add_reply(str(message.get("id") or line["uuid"]), _reply_blocks(content))
            found.model = f"anthropic/{name}" if isinstance(name := message.get("model"), str) else found.model
        found.id, found.cwd = str(line.get("sessionId") or found.id), str(line.get("cwd") or found.cwd)
    if elsewhere:
        found.left_out.append(f"{counted(elsewhere, 'message')} of other branches or from before a compaction")
    if sidechain := sum(bool(line.get("isSidechain")) for line in lines):
        found.left_out.append(f"{counted(sidechain, 'line')} of subagents")
    return found


def _newest_branch(lines: list[dict[str, Any]]) -> set[str]:
    """Return the ids of the newest line and its parents. Where one is missing, the line before takes its place."""
    places = {line["uuid"]: place for place, line in enumerate(lines)}
    branch = set[str]()
    place = next((n for n in reversed(range(len(lines))) if lines[n].get("type") in ("user", "assistant")), -1)
    while place >= 0:
        branch.add(lines[place]["uuid"])
        if (parent := lines[place].get("parentUuid")) is None:
            break
        place = min(places.get(str(parent), place), place - 1)  # a parent comes first, so this ends
    return branch


def _reply_blocks(content: Any) -> Iterator[Block]:
    for block in _tables(content):
        match block:
            case {"type": "thinking", "thinking": str(text)}:
                yield Thinking(text)  # its signature is valid only in the conversation where it was made
            case {"type": "tool_use", "id": str(id), "name": str(name), "input": dict(arguments)}:
                yield ToolUse(id, name, arguments)
            case _:
                yield from _parts([block])


# Codex


def _read_codex(lines: list[dict[str, Any]]) -> OtherTranscript:
    found = OtherTranscript(tool="Codex")
    provider, compacted = "openai", 0
    for line in lines:
        match line.get("type"), line.get("payload"):
            case "session_meta", dict(meta) if not found.id:  # a fork also has those of the sessions it comes from
                found.id, found.cwd = str(meta.get("id", "")), str(meta.get("cwd", ""))
                provider = str(meta.get("model_provider") or provider)
            case "turn_context", {"model": str(model)}:
                found.model = f"{provider}/{model}"
            case "compacted", dict(summary):
                compacted += len(found.messages)
                is_replaced = isinstance(history := summary.get("replacement_history"), list)
                found.messages = [] if is_replaced else [one for one in found.messages if one.role == "user"]
                for item in _tables(history):
                    _add_item(found, item)
                found.add_prompt(summary.get("message") or (), is_note=True)
            case "response_item", dict(item):
                _add_item(found, item)
    if compacted:
        found.left_out.append(f"{counted(compacted, 'message')} from before a compaction, except what it carried on")
    return found


def _add_item(found: OtherTranscript, item: Mapping[str, Any]) -> None:
    reply = f"after {len(found.results)} results"  # a model reads them before it goes on, in another reply
    match item:
        case {"type": "message", "role": "assistant"}:
            found.add_reply(reply, _parts(item.get("content")))
        case {"type": "message", "role": "user"}:
            found.add_prompt(item.get("content"))
        case {"type": "reasoning"}:
            found.add_reply(reply, [Thinking(part.text) for part in _parts(item.get("summary"))])
        case {"type": "function_call", "call_id": str(id), "name": str(name)}:
            found.add_reply(reply, [ToolUse(id, name, parse_arguments(str(item.get("arguments") or "")) or {})])
        case {"type": "custom_tool_call", "call_id": str(id), "name": str(name)}:
            found.add_reply(reply, [ToolUse(id, name, {"input": item.get("input")})])
        case {"type": "local_shell_call", "call_id": str(id), "action": dict(action)}:
            found.add_reply(reply, [ToolUse(id, "shell", action)])
        case {"type": "function_call_output" | "custom_tool_call_output", "call_id": str(id), "output": output}:
            match parse_arguments(output, was_cut=True) if isinstance(output, str) else output:
                case ({"output": content} | {"content": content, "success": _}) as table if isinstance(table, dict):
                    found.add_result(id, content, is_error=table.get("success") is False)
                case _:
                    found.add_result(id, output, is_error=False)


# Content


def _tables(content: Any) -> list[dict[str, Any]]:
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _parts(content: Any) -> Iterator[Any]:
    """Yield texts, images and documents of either tool; what no model takes is named in their place."""
    if isinstance(content, str):
        yield from [Text(content)] if content.strip() else ()
    for part in _tables(content):
        kind = part.get("type")
        match part:
            case {"type": "text" | "input_text" | "output_text" | "summary_text", "text": str(text)}:
                yield from [Text(text)] if text.strip() else ()
            case {"type": "image" | "document", "source": {"media_type": str(media_type), "data": str(data)}}:
                yield _checked((Image if kind == "image" else Document)(Base64Source(media_type, data)))
            case {"type": "input_image", "image_url": str(url)} if url.startswith("data:"):
                yield _checked(Image(Base64Source.of_url(url)))
            case {"type": "tool_result" | "redacted_thinking"}:  # a result is kept apart
                pass
            case _:
                yield Text(f"[{kind} left out]")


def _checked(media: Image | Document) -> Image | Document | Text:
    try:
        check_media([media])
    except ValueError as error:
        return Text(f"[left out: {error}]")
    return media
