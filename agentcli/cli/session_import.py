"""Imports conversations of Claude Code and Codex: finds them, reads them, and stores them as sessions of this folder.

No tool call runs again: each keeps its result, or gets one that says the result is missing.
"""

import argparse
import asyncio
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from agentcli.agent.calls.report import Mask
from agentcli.cli.output import warn
from agentcli.cli.session_opener import session_choice
from agentcli.cli.subcommands.sessions import folder_mask
from agentcli.conversation.entries import Assistant, Body, ContextNote, ProviderSwitch, Result, User, reminder
from agentcli.conversation.history import counted, listed_names
from agentcli.errors import NoModel, UsageError, UserError
from agentcli.frontends.json_input import MAX_LINE_BYTES, check_media, decode_input
from agentcli.infra.sessions.sqlite import SqliteSessions
from agentcli.llm.messages import Base64Source, Block, Document, Image, Role, Text, Thinking, ToolResult, ToolUse
from agentcli.llm.wire.reply_parts import CallIds, parse_arguments, plain_id
from agentcli.models.choice import Models
from agentcli.settings.files import home_of
from agentcli.settings.load import Config
from agentcli.tables import read_table
from agentcli.tools.builtin.toolset import builtin_tools

_MISSING = Text("The imported conversation has no result of this call.")
_TEXTS: dict[type, str] = {Text: "text", Thinking: "thinking", ToolUse: "input"}  # the field that may contain secrets
_ID_START = len("rollout-2026-01-31T10-20-30-")  # the id's position in the name of a Codex file
# Texts that these programs send in the user's name, about the environment or about their own commands.
_NOTES = re.compile(
    r"\s*(<(command-name|command-message|local-command-\w+|bash-\w+|system-reminder|environment_context"
    r"|user_instructions|permissions instructions|skill|turn_aborted)\b|# AGENTS\.md instructions)"
)


class OtherMessage(Struct):
    """A message of another program, whose calls still have the names and arguments of that program's tools."""

    role: Role
    content: list[Block]
    is_note: bool = False  # sent by the program in the user's name
    reply_id: str = ""  # the id of the model's reply: both programs store its blocks one by one


class OtherTranscript(Struct, kw_only=True):
    """A conversation of another program."""

    program: Literal["Claude Code", "Codex"]
    id: str = ""
    cwd: str = ""
    model: str = "unknown/unknown"  # provider/model
    messages: list[OtherMessage] = field(default_factory=list)
    results: dict[str, ToolResult] = field(default_factory=dict)  # by the ids of calls
    left_out: list[str] = field(default_factory=list)  # descriptions of the parts that were not imported

    def add_reply(self, reply_id: str, blocks: Iterable[Block]) -> None:
        """Add blocks of the model's reply: to the newest message if that is the same reply, else as a new message."""
        content = [block for block in blocks if not isinstance(block, Thinking) or block.thinking.strip()]
        if self.messages and self.messages[-1].reply_id == reply_id:
            self.messages[-1].content += content
        elif content:
            self.messages.append(OtherMessage("assistant", content, reply_id=reply_id))

    def add_prompt(self, content: Any, *, is_note: bool = False) -> None:
        parts = list(_read_parts(content))
        is_note = is_note or all(isinstance(part, Text) and _NOTES.match(part.text) for part in parts)
        if parts:
            self.messages.append(OtherMessage("user", [*parts], is_note))

    def add_result(self, id: str, content: Any, *, is_error: bool) -> None:
        self.results[id] = ToolResult(id, tuple(_read_parts(content)), is_error)


def read_transcript(file: Path) -> OtherTranscript:
    lines, damaged_count = list[dict[str, Any]](), 0
    try:
        with file.open("rb") as source:
            while raw := source.readline(MAX_LINE_BYTES + 1):
                try:
                    if isinstance(line := decode_input(raw), dict):
                        lines.append(line)
                except ValueError:
                    damaged_count += 1
    except OSError as error:
        raise UserError(f"Could not read {file}: {error.strerror}.") from error
    is_codex = any(line.get("type") in ("session_meta", "response_item") for line in lines)
    transcript = _read_codex(lines) if is_codex else _read_claude(lines)
    if damaged_count:
        transcript.left_out.append(counted(damaged_count, "damaged line"))
    if not transcript.messages:
        raise UserError(f"{file} holds no conversation of Claude Code or Codex.")
    return transcript


def _read_claude(lines: list[dict[str, Any]]) -> OtherTranscript:
    """Read the newest branch of a log of Claude Code: from its last line back to a compaction or the beginning."""
    transcript = OtherTranscript(program="Claude Code")
    main_lines = [line for line in lines if isinstance(line.get("uuid"), str) and not line.get("isSidechain")]
    branch_ids, has_others = _newest_branch_ids(main_lines), False
    for line in main_lines:
        message = line.get("message")
        if line.get("type") not in ("user", "assistant") or not isinstance(message, dict):
            continue
        content = message.get("content")
        for block in _objects_in(content):  # also outside the branch, where parallel calls have their results
            if block.get("type") == "tool_result" and isinstance(id := block.get("tool_use_id"), str):
                transcript.add_result(id, block.get("content"), is_error=block.get("is_error") is True)
        if line["uuid"] not in branch_ids:
            has_others = True
        elif line["type"] == "user":
            transcript.add_prompt(content, is_note=bool(line.get("isMeta") or line.get("isCompactSummary")))
        elif not line.get("isApiErrorMessage"):  # a failure that Claude Code shows in place of a reply
            transcript.add_reply(str(message.get("id") or line["uuid"]), _reply_blocks(content))
            if isinstance(name := message.get("model"), str):
                transcript.model = f"anthropic/{name}"
        transcript.id = str(line.get("sessionId") or transcript.id)
        transcript.cwd = str(line.get("cwd") or transcript.cwd)
    if has_others:
        transcript.left_out.append("other branches and what came before a compaction")
    if any(line.get("isSidechain") for line in lines):
        transcript.left_out.append("subagents")
    return transcript


def _newest_branch_ids(lines: list[dict[str, Any]]) -> set[str]:
    """Return the ids of the newest message and its ancestors; the preceding line replaces a missing parent."""
    positions = {line["uuid"]: position for position, line in enumerate(lines)}
    ids = set[str]()
    messages = [position for position, line in enumerate(lines) if line.get("type") in ("user", "assistant")]
    position = messages[-1] if messages else -1
    while position >= 0:
        ids.add(lines[position]["uuid"])
        if (parent := lines[position].get("parentUuid")) is None:
            break
        parent_position = positions.get(str(parent), position - 1)
        position = min(parent_position, position - 1)  # always further back, so that damaged files cause no loop
    return ids


def _reply_blocks(content: Any) -> Iterator[Block]:
    for block in _objects_in(content):
        match block:
            case {"type": "thinking", "thinking": str(text)}:
                yield Thinking(text)  # without the signature, which is valid only in the original conversation
            case {"type": "tool_use", "id": str(id), "name": str(name), "input": dict(arguments)}:
                yield ToolUse(id, name, arguments)
            case _:
                yield from _read_parts([block])


def _read_codex(lines: list[dict[str, Any]]) -> OtherTranscript:
    """Read a log of Codex: all messages or, after a compaction, those that it carried over and later ones."""
    transcript = OtherTranscript(program="Codex")
    provider = "openai"
    for line in lines:
        match line.get("type"), line.get("payload"):
            # The first one counts: those of the conversations that a fork continues follow it.
            case "session_meta", dict(meta) if not transcript.id:
                transcript.id, transcript.cwd = str(meta.get("id", "")), str(meta.get("cwd", ""))
                provider = str(meta.get("model_provider") or provider)
            case "turn_context", {"model": str(model)}:
                transcript.model = f"{provider}/{model}"
            case "compacted", dict(compaction):
                transcript.left_out = ["what came before a compaction, except what it carried on"]
                history = compaction.get("replacement_history")
                prompts = [one for one in transcript.messages if one.role == "user"]
                # Without a new history, Codex carried on only the prompts.
                transcript.messages = [] if isinstance(history, list) else prompts
                for item in _objects_in(history):
                    _add_codex_item(transcript, item)
                transcript.add_prompt(compaction.get("message") or (), is_note=True)  # the summary
            case "response_item", dict(item):
                _add_codex_item(transcript, item)
    return transcript


def _add_codex_item(transcript: OtherTranscript, item: Mapping[str, Any]) -> None:
    """Add an item of a Codex log to the transcript: as a prompt, as a part of a reply, or as the result of a call."""
    reply_id = f"after {len(transcript.results)} results"  # a reply ends when results arrive: what follows is a new one
    match item:
        case {"type": "message", "role": "assistant"}:
            transcript.add_reply(reply_id, _read_parts(item.get("content")))
        case {"type": "message", "role": "user"}:
            transcript.add_prompt(item.get("content"))
        case {"type": "reasoning"}:
            transcript.add_reply(reply_id, [Thinking(part.text) for part in _read_parts(item.get("summary"))])
        case {"type": "function_call", "call_id": str(id), "name": str(name)}:
            arguments = parse_arguments(str(item.get("arguments") or "")) or {}
            transcript.add_reply(reply_id, [ToolUse(id, name, arguments)])
        case {"type": "custom_tool_call", "call_id": str(id), "name": str(name)}:
            transcript.add_reply(reply_id, [ToolUse(id, name, {"input": item.get("input")})])
        case {"type": "local_shell_call", "call_id": str(id), "action": dict(action)}:
            transcript.add_reply(reply_id, [ToolUse(id, "shell", action)])
        case {"type": "function_call_output" | "custom_tool_call_output", "call_id": str(id), "output": output}:
            # Some versions of Codex wrap the content in an object, or in the JSON of one. Other outputs are plain text,
            # which must not be repaired as if it were broken JSON, hence `was_cut`.
            wrapper: Any = parse_arguments(output, was_cut=True) if isinstance(output, str) else output
            match wrapper:
                case {"output": content} | {"content": content, "success": _}:
                    transcript.add_result(id, content, is_error=wrapper.get("success") is False)
                case _:
                    transcript.add_result(id, output, is_error=False)


def _objects_in(content: Any) -> list[dict[str, Any]]:
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _read_parts(content: Any) -> Iterator[Any]:
    """Yield the texts, images and documents of either program; a text names each part that cannot be imported."""
    if isinstance(content, str):
        yield from [Text(content)] if content.strip() else ()
    for part in _objects_in(content):
        kind = part.get("type")
        match part:
            case {"type": "text" | "input_text" | "output_text" | "summary_text", "text": str(text)}:
                yield from [Text(text)] if text.strip() else ()
            case {"type": "image" | "document", "source": {"media_type": str(media_type), "data": str(data)}}:
                source = Base64Source(media_type, data)
                yield _media_or_note(Image(source) if kind == "image" else Document(source))
            case {"type": "input_image", "image_url": str(url)} if url.startswith("data:"):
                yield _media_or_note(Image(Base64Source.of_url(url)))
            case {"type": "tool_result" | "redacted_thinking"}:  # results are read by `_read_claude`
                pass
            case _:
                yield Text(f"[{kind} left out]")


def _media_or_note(media: Image | Document) -> Image | Document | Text:
    try:
        check_media([media])
    except ValueError as error:
        return Text(f"[left out: {error}]")
    return media


def import_for_resume(config: Config, options: argparse.Namespace) -> str:
    session_choice(options)  # raises `UsageError` for flags that do not go together
    session_id, report = import_file(config, _find_conversation(options.resume, config))
    warn(f"{report} To continue it later: agentcli -r {session_id}")
    return session_id


def _find_conversation(name: str, config: Config) -> Path:
    """Return the file of `claude:ID` or `codex:ID`. ID may be shortened; `claude:` is the folder's newest."""
    program, _, id = name.partition(":")
    if name == "codex:":
        raise UsageError("Name the conversation: codex:ID. Its id is in the name of its file in ~/.codex/sessions.")
    home, ids = home_of(config.environment), dict[Path, str]()
    if program == "claude":
        folder = Path(config.environment.get("CLAUDE_CONFIG_DIR") or home / ".claude") / "projects"
        project = "*" if id else re.sub(r"[^A-Za-z0-9]", "-", str(config.cwd))
        ids = {file: file.stem for file in folder.glob(f"{project}/*.jsonl") if not file.name.startswith("agent-")}
    else:
        folder = Path(config.environment.get("CODEX_HOME") or home / ".codex") / "sessions"
        ids = {file: file.stem[_ID_START:] for file in folder.rglob("rollout-*.jsonl")}
    found = sorted((file for file in ids if ids[file].startswith(id)), key=lambda file: -file.stat().st_mtime)
    if not found:
        what = f"conversation {id}" if id else "conversation of this directory"
        raise UsageError(f"There is no {what} in {folder}. To import a file: agentcli sessions import FILE")
    if id and len(found) > 1:
        raise UsageError(f"Several conversations begin with {id}: {listed_names([ids[file] for file in found], 5)}.")
    return found[0]


def import_file(config: Config, file: Path) -> tuple[str, str]:
    """Store the conversation in a file as a session of this folder; return its id and a report. Raises `UserError`."""
    return asyncio.run(_store_conversation(config, read_transcript(file)))


async def _store_conversation(config: Config, transcript: OtherTranscript) -> tuple[str, str]:
    """Store a conversation as a new session; return its id, and a report on what was imported and what was not."""
    conversion = _Conversion(transcript, await folder_mask(config))  # masks the secrets of this folder, too
    bodies = [body for message in transcript.messages for body in conversion.bodies(message)]
    report = conversion.report(config.cwd)
    changed = "Files may have changed since then: read them again before you change them."
    bodies += [reminder(f"The conversation so far was with {transcript.program}. {changed}"), ContextNote(report)]
    async with AsyncExitStack() as stack:
        models = Models(config)
        stack.push_async_callback(models.aclose)
        try:
            models.require_key(transcript.model)
            models.info(transcript.model)
        except UserError:  # the conversation's own model cannot be used here
            with suppress(NoModel):  # no other model either: the start of the session reports that
                bodies.append(ProviderSwitch(transcript.model, await models.default()))
        store = SqliteSessions(config.paths.sessions, on_notice=warn)
        stack.push_async_callback(store.close)
        log = await store.create(cwd=config.cwd)
        stack.push_async_callback(log.close)
        await log.append(*bodies).committed
    return log.session_id, report


class _Conversion:
    """Converts messages to bodies of log entries: calls become calls of agentcli's tools, and secrets are masked."""

    def __init__(self, transcript: OtherTranscript, mask: Mask) -> None:
        self._transcript, self._mask, self._ids = transcript, mask, CallIds()
        self._equivalents = read_table(__file__, "other_tools")
        self._arguments = {tool.name: tool.arguments for tool in builtin_tools()}
        self._messages = self._calls = self._calls_as_text = self._secrets = 0  # counts for the report

    def bodies(self, message: OtherMessage) -> Iterator[Body]:
        """Yield the bodies of a message; a reply is followed by the results of its calls."""
        content = [self._masked(block) for block in message.content]
        if not message.is_note:
            self._messages += 1
        if message.role == "user":
            text = "\n".join(part.text for part in content if isinstance(part, Text))
            yield reminder(text) if message.is_note else User(tuple(content))
            return
        uses = [block for block in content if isinstance(block, ToolUse)]
        new_calls = {use.id: self._equivalent_call(use) for use in uses}  # by the original id; None: becomes a text
        converted = [new_calls.get(block.id) if isinstance(block, ToolUse) else block for block in content]
        provider, _, model = self._transcript.model.partition("/")
        if blocks := tuple(block for block in converted if block is not None):
            end: Literal["tool_use", "end_turn"] = "tool_use" if any(new_calls.values()) else "end_turn"
            yield Assistant(content=blocks, provider=provider, model=model, stop_reason=end, cost_usd=0.0)
        calls_as_text = list[Body]()
        for use in uses:
            result = self._transcript.results.get(use.id) or ToolResult(use.id, (_MISSING,), is_error=True)
            parts = tuple(self._masked(part) for part in result.parts)
            if new_call := new_calls[use.id]:
                yield Result(result=ToolResult(new_call.id, parts, result.is_error), name=new_call.name)
            else:
                # Encoded first, so that the names of arguments are masked as well.
                call = self._masked(Text(f"{use.name} {msgspec.json.encode(use.input).decode()}"))
                note = reminder(f"In {self._transcript.program} you made this call, whose result follows: {call.text}")
                calls_as_text.append(User((*note.content, *parts), is_reminder=True))
        yield from calls_as_text  # last, because the results must come directly after the reply

    def _equivalent_call(self, use: ToolUse) -> ToolUse | None:
        """Return the equivalent call of one of agentcli's tools; None if no tool accepts such a call."""
        # A row has one item: the name of agentcli's tool ("" for none), and the other program's name of each argument.
        ((name, other_names),) = self._equivalents.get(use.name, {"": {}}).items()
        arguments = {key: use.input[other] for key, other in other_names.items() if use.input.get(other) is not None}
        match arguments.get("command"):
            case [_, "-lc" | "-c", str(script)]:
                arguments["command"] = script
            case [*words]:
                arguments["command"] = shlex.join(map(str, words))
        if name == "todo" and isinstance(items := arguments.get("items"), list):
            fields = ("content", "status")
            arguments["items"] = [{key: item.get(key) for key in fields} for item in items if isinstance(item, dict)]
        try:
            msgspec.convert(arguments, self._arguments[name])
        except (KeyError, msgspec.ValidationError):
            self._calls_as_text += 1
            return None
        self._calls += 1
        return ToolUse(self._ids.take(plain_id(use.id)), name, arguments)

    def _masked(self, block: Any) -> Any:
        if (name := _TEXTS.get(type(block))) is None:  # an image or a document
            return block
        masked, count = self._mask.value(getattr(block, name))
        self._secrets += count
        return msgspec.structs.replace(block, **{name: masked})

    def report(self, cwd: Path) -> str:
        transcript = self._transcript
        imported = f"{counted(self._messages, 'message')}, {counted(self._calls, 'call')} with results"
        imported += f", {counted(self._calls_as_text, 'call')} as text" if self._calls_as_text else ""
        missing = transcript.left_out + ([f"{counted(self._secrets, 'secret')} (masked)"] if self._secrets else [])
        text = f"Imported from {transcript.program}, {transcript.id or 'no id'}: {imported}."
        text += f" Not imported: {', '.join(missing)}." if missing else ""
        is_elsewhere = transcript.cwd not in ("", str(cwd))
        return f"{text} It was held in {transcript.cwd}; this session works in {cwd}." if is_elsewhere else text
