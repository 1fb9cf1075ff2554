"""Continues conversations of Claude Code and Codex: finds them, and stores them as sessions of this folder.

Nothing in them runs again: every call gets the result that it had, or one that says it is missing.
"""

import argparse
import asyncio
import re
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec

from agentcli.agent.calls.report import Mask
from agentcli.app import Builder
from agentcli.cli.other_transcripts import OtherMessage, OtherTranscript, read_transcript
from agentcli.cli.output import warn
from agentcli.cli.session_opener import session_choice
from agentcli.cli.subcommands.sessions import folder_mask
from agentcli.conversation.entries import Assistant, Body, ContextNote, ProviderSwitch, Result, User, reminder
from agentcli.conversation.history import counted, listed_names
from agentcli.errors import NoModel, UsageError, UserError
from agentcli.infra.sessions.sqlite import MemorySessions, SqliteSessions
from agentcli.llm.messages import Image, StopReason, Text, Thinking, ToolResult, ToolUse
from agentcli.llm.wire.reply_parts import CallIds, plain_id
from agentcli.settings.files import home_of
from agentcli.settings.load import Config
from agentcli.tools.builtin.toolset import builtin_tools

_MISSING = Text("The imported conversation has no result of this call.")
_TEXTS: dict[type, str] = {Text: "text", Thinking: "thinking", ToolUse: "input"}  # the field that may hold secrets
_ID_IN_NAME = len("rollout-2026-01-31T10-20-30-")  # where the id begins in the name of a Codex file


def import_for_resume(config: Config, options: argparse.Namespace) -> str:
    """Import the conversation that `--resume` names as `claude:ID` or `codex:ID`, and return the session's id."""
    session_choice(options)  # raises `UsageError` for flags that do not go together
    session_id, report = import_file(config, _find(options.resume, config))
    warn(f"{report} To continue it later: agentcli -r {session_id}", at_words=True)
    return session_id


def _find(name: str, config: Config) -> Path:
    """Return the file of `claude:ID` or `codex:ID`; ID may be shortened, or missing for the newest of this folder."""
    tool, _, id = name.partition(":")
    home, ids = home_of(config.environment), dict[Path, str]()
    if tool == "claude":
        place = Path(config.environment.get("CLAUDE_CONFIG_DIR") or home / ".claude") / "projects"
        folder = "*" if id else re.sub(r"[^A-Za-z0-9]", "-", str(config.cwd))
        ids = {file: file.stem for file in place.glob(f"{folder}/*.jsonl") if not file.name.startswith("agent-")}
    else:
        place = Path(config.environment.get("CODEX_HOME") or home / ".codex") / "sessions"
        ids = {file: file.stem[_ID_IN_NAME:] for file in place.rglob("rollout-*.jsonl")}
    found = sorted((file for file in ids if ids[file].startswith(id)), key=lambda file: -file.stat().st_mtime)
    if not id and tool == "codex":
        found = [file for file in found if _codex_folder(file) == str(config.cwd)]
    if not found:
        what = f"conversation {id}" if id else "conversation of this directory"
        raise UsageError(f"There is no {what} in {place}. To import a file: agentcli sessions import FILE")
    if id and len(found) > 1:
        raise UsageError(f"Several conversations begin with {id}: {listed_names([ids[file] for file in found], 5)}.")
    return found[0]


def _codex_folder(file: Path) -> str:
    """Return the working directory of a Codex conversation, which its first line names; empty if it is damaged."""
    try:
        with file.open("rb") as source:
            return str(msgspec.json.decode(source.readline())["payload"]["cwd"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def import_file(config: Config, file: Path) -> tuple[str, str]:
    """Store the conversation in a file as a session of this folder; return its id and a report. Raises `UserError`."""
    return asyncio.run(_store(config, read_transcript(file)))


async def _store(config: Config, transcript: OtherTranscript) -> tuple[str, str]:
    conversion = _Conversion(transcript, await folder_mask(config))
    bodies = [body for message in transcript.messages for body in conversion.bodies(message)]
    report = conversion.report(config.cwd)
    changed = "Files may have changed since then: read them again before you change them."
    bodies += [reminder(f"The conversation so far was with {transcript.tool}. {changed}"), ContextNote(report)]
    async with AsyncExitStack() as stack:
        builder = Builder(config, store=MemorySessions(), on_notice=warn)
        stack.push_async_callback(builder.aclose)
        try:
            builder.models.require_key(transcript.model)
            builder.models.info(transcript.model)
        except UserError:  # its own model cannot be used here
            with suppress(NoModel):  # nor any other, which the start of the session says
                bodies.append(ProviderSwitch(transcript.model, await builder.models.default()))
        store = SqliteSessions(config.paths.sessions, on_notice=warn)
        stack.push_async_callback(store.close)
        log = await store.create(cwd=config.cwd)
        stack.push_async_callback(log.close)
        await log.append(*bodies).committed
    return log.session_id, report


class _Conversion:
    """Turns messages into the bodies of entries: calls become those of agentcli's tools, and secrets are masked."""

    def __init__(self, transcript: OtherTranscript, mask: Mask) -> None:
        self._transcript, self._mask, self._ids = transcript, mask, CallIds()
        self._names = tomllib.loads(Path(__file__).with_name("other_tools.toml").read_text("utf-8"))
        self._arguments = {tool.name: tool.arguments for tool in builtin_tools()}
        self._files = set[str]()
        self._messages = self._calls = self._calls_as_text = self._images = self._secrets = 0

    def bodies(self, message: OtherMessage) -> Iterator[Body]:
        """Yield the bodies of a message; the results of a reply's calls follow it."""
        content = [self._masked(block) for block in message.content]
        self._messages += not message.is_note
        if message.role == "user":
            text = "\n".join(part.text for part in content if isinstance(part, Text))
            yield reminder(text) if message.is_note else User(tuple(content))
            return
        calls = {use.id: self._own_call(use) for use in content if isinstance(use, ToolUse)}
        shown = [calls.get(block.id) if isinstance(block, ToolUse) else block for block in content]
        provider, _, model = self._transcript.model.partition("/")
        if blocks := tuple(block for block in shown if block is not None):
            stop: StopReason = "tool_use" if any(calls.values()) else "end_turn"
            yield Assistant(content=blocks, provider=provider, model=model, stop_reason=stop, cost_usd=0.0)
        notes = list[Body]()
        for use in (block for block in content if isinstance(block, ToolUse)):
            result = self._transcript.results.get(use.id) or ToolResult(use.id, (_MISSING,), is_error=True)
            parts = tuple(self._masked(part) for part in result.parts)
            if own := calls[use.id]:
                yield Result(result=ToolResult(own.id, parts, result.is_error), name=own.name)
            else:
                call = self._masked(Text(f"{use.name} {msgspec.json.encode(use.input).decode()}"))  # also the names
                note = reminder(f"In {self._transcript.tool} you made this call, whose result follows: {call.text}")
                notes.append(User((*note.content, *parts), is_reminder=True))
        yield from notes

    def _own_call(self, use: ToolUse) -> ToolUse | None:
        """Return the same call of agentcli's own tool; None if no tool does the same, or not with these arguments."""
        ((own, names),) = self._names.get(use.name, {"": {}}).items()
        arguments = {key: use.input[other] for key, other in names.items() if use.input.get(other) is not None}
        match arguments.get("command"):
            case [_, "-lc" | "-c", str(script)]:
                arguments["command"] = script
            case [*words]:
                arguments["command"] = shlex.join(map(str, words))
        if own == "todo" and isinstance(items := arguments.get("items"), list):
            fields = ("content", "status")
            arguments["items"] = [{key: item.get(key) for key in fields} for item in items if isinstance(item, dict)]
        try:
            msgspec.convert(arguments, self._arguments[own])
        except (KeyError, msgspec.ValidationError):
            self._calls_as_text += 1
            return None
        self._calls += 1
        if own.startswith("file_"):
            self._files.add(str(arguments.get("path")))
        return ToolUse(self._ids.take(plain_id(use.id)), own, arguments)

    def _masked(self, block: Any) -> Any:
        """Return a block without secrets. Media stay as they are."""
        self._images += isinstance(block, Image)
        if (name := _TEXTS.get(type(block))) is None:
            return block
        masked, count = self._mask.value(getattr(block, name))
        self._secrets += count
        return msgspec.structs.replace(block, **{name: masked})

    def report(self, cwd: Path) -> str:
        """Return sentences on what came over and what did not."""
        transcript = self._transcript
        came = [counted(self._messages, "message"), f"{counted(self._calls, 'call')} with results"]
        came += [f"{counted(self._calls_as_text, 'call')} as text"] if self._calls_as_text else []
        came += [counted(self._images, "image")] if self._images else []
        came.append(f"the names of {counted(len(self._files), 'file')}")
        missing = transcript.left_out + ([f"{counted(self._secrets, 'secret')} (masked)"] if self._secrets else [])
        text = f"Imported from {transcript.tool}, {transcript.id or 'no id'}: {', '.join(came)}."
        text += f" Not imported: {', '.join(missing)}." if missing else ""
        is_elsewhere = transcript.cwd not in ("", str(cwd))
        return text + f" It was held in {transcript.cwd}; this session works in {cwd}." * is_elsewhere
