"""Reads the rows of the corpus into logs; README.md has their form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from agentcli.conversation.entries import (
    Assistant,
    Body,
    Entry,
    FileChange,
    FilesChanged,
    FilesRestored,
    FileState,
    Result,
    User,
)
from agentcli.conversation.evidence import Claim
from agentcli.conversation.evidence.claims import find_claims
from agentcli.conversation.evidence.verdicts import ActivityRecord, check_claims
from agentcli.llm.messages import Text, ToolResult, ToolUse

FOLDER = Path(__file__).parent
CWD = "/project"
_RUN = re.compile(r"\$ (?P<command>.*) => (?P<exit>\d+)(?: \[(?P<changes>[^\]]*)\])?(?:\n(?P<output>.*))?", re.DOTALL)
_FILE_CALL = re.compile(r"(?P<verb>write|rewrite|edit|read)(?P<failed>!)? (?P<path>\S+) ?(?P<why>.*)")


class Row(Struct):
    text: str
    log: list[str]
    claims: list[tuple[str, str]]
    disk: dict[str, str] = {}

    def checked(self) -> list[Claim]:
        log = Log(self.log)
        record = ActivityRecord(log.entries, CWD, lambda path: log.now(path, self.disk))
        return list(check_claims(find_claims(self.text), record))


def rows(half: str) -> list[Row]:
    lines = (FOLDER / f"{half}.jsonl").read_text("utf-8").splitlines()
    return [Row(**json.loads(line)) for line in lines]


def table(name: str) -> list[list[Any]]:
    """The rows of one of the other files, each with what is wanted last."""
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text("utf-8").splitlines()]


class Log:
    """The entries of a session that begins with a prompt and goes on as the lines tell."""

    def __init__(self, lines: list[str]) -> None:
        self.entries: list[Entry] = []
        self._files: dict[str, FileState | None] = {}
        self._made = 0
        self._add(User((Text("Go on."),)))
        for line in lines:
            self._add_line(line)

    def now(self, path: str, disk: dict[str, str]) -> str | None:
        match disk.get(path.removeprefix(f"{CWD}/")):
            case "gone":
                return ""
            case "other":
                return "other"
            case _:
                state = self._files.get(path)
                return state.content if state else ""

    def _add(self, body: Body, id: str = "") -> None:
        self._made += 1
        parent = self.entries[-1].id if self.entries else None
        self.entries.append(Entry(id or f"e{self._made}", parent, 0.0, body))

    def _add_line(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "user":
            self._add(User((Text(rest),)))
        elif word == "said":
            self._add(Assistant(content=(Text(rest),), provider="scripted", model="m"))
        elif word == "undo":
            self._add(FilesRestored(("x",), (self._change(rest, "~", is_undo=True),)))
        elif word in ("denied", "timeout", "dropped"):
            told: Any = {"exit_code": None, "output": "", "timed_out": True} if word == "timeout" else None
            command, _, names = rest.removeprefix("$ ").removesuffix("]").partition(" [")
            if word == "dropped":
                changes = [{"name": name[1:]} for name in names.split()]
                told = {"exit_code": 0, "output": "", "changes": changes, "kept": []}
            self._call("bash", {"command": command}, told, is_error=True)
        elif found := _RUN.fullmatch(line):
            changes = [self._change(change[1:], change[0]) for change in (found["changes"] or "").split()]
            told = {"exit_code": int(found["exit"]), "output": found["output"] or "", "timed_out": False}
            self._call("bash", {"command": found["command"]}, told, is_error=found["exit"] != "0", changes=changes)
        elif found := _FILE_CALL.fullmatch(line):
            self._file_call(found["verb"], found["path"], is_error=bool(found["failed"]))
        else:
            raise ValueError(line)

    def _file_call(self, verb: str, path: str, *, is_error: bool) -> None:
        name = {"edit": "file_edit", "read": "file_read"}.get(verb, "file_write")
        changes = [] if is_error or verb == "read" else [self._change(path, "+" if verb == "write" else "~")]
        self._call(name, {"path": path}, None if is_error else {"path": path}, is_error=is_error, changes=changes)

    def _call(
        self, name: str, given: dict[str, Any], told: Any, *, is_error: bool, changes: list[FileChange] | None = None
    ) -> None:
        id = f"call{self._made}"
        self._add(Assistant(content=(ToolUse(id, name, given),), provider="scripted", model="m"))
        if changes:
            self._add(FilesChanged(id, tuple(changes)))
        self._add(Result(result=ToolResult(id, "", is_error), name=name, structured=told), id)

    def _change(self, path: str, how: str, *, is_undo: bool = False) -> FileChange:
        full = f"{CWD}/{path}"
        before = self._files.get(full) or (None if how == "+" else FileState("file", 0o644, "before", 1))
        after = None if how == "-" else FileState("file", 0o644, f"content{self._made}", 1)
        if is_undo:
            after = FileState("file", 0o644, "before", 1)
        self._files[full] = after
        return FileChange(full, before, after)


def differences(half: str) -> Iterator[tuple[Row, list[tuple[str, str]]]]:
    """The rows of which other claims were found, or other verdicts given, with those."""
    for row in rows(half):
        found = sorted((claim.kind, claim.verdict) for claim in row.checked())
        if found != sorted((kind, verdict) for kind, verdict in row.claims):
            yield row, found
