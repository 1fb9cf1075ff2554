"""Writes a session's entries as transcripts for programs and hooks, and imports a session from a transcript."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from agentcli.agent.interfaces import NEWEST, SessionStore
from agentcli.agent.session import Session
from agentcli.conversation.entries import Body, Entry
from agentcli.errors import NoSession, UsageError
from agentcli.extensions.claude_code_names import claude_code_call
from agentcli.frontends.json_output import entry_object
from agentcli.settings.files import home_of, make_private_folder
from agentcli.version import __version__

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ENTRY_KEY = "agentcli"  # in a transcript's line, of the complete log entry
_MAX_FOLDER_CHARS = 200  # of a project's name; Claude Code adds a hash to longer ones


def transcript_folder(environment: Mapping[str, str], cwd: Path) -> Path:
    """Return the folder where Claude Code would write transcripts, and where the SDKs look for them."""
    home = Path(environment.get("CLAUDE_CONFIG_DIR") or home_of(environment) / ".claude")
    return home / "projects" / re.sub(r"[^a-zA-Z0-9]", "-", str(cwd.resolve()))[:_MAX_FOLDER_CHARS]


def mirror_object(entry: Entry, session_id: str, folder: Path) -> dict[str, Any]:
    line = {**_transcript_line(entry, session_id), _ENTRY_KEY: msgspec.to_builtins(entry)}
    return {"type": "transcript_mirror", "filePath": str(folder / f"{session_id}.jsonl"), "entries": [line]}


def _transcript_line(entry: Entry, session_id: str) -> dict[str, Any]:
    shown = entry_object(entry, session_id) or {}
    ids = {"uuid": entry.id, "parentUuid": entry.parent_id, "sessionId": session_id}
    line = {**ids, "timestamp": datetime.fromtimestamp(entry.time, UTC).isoformat(), "isSidechain": False}
    if "message" not in shown:
        return {"type": "system", **line}
    return {"type": shown["type"], **line, "message": shown["message"]}


class HookTranscript:
    """A file with a session's conversation, for hooks to read. It is removed with this object, or at exit."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._folder: TemporaryDirectory[str] | None = None
        self._written: set[str] = set()  # ids of the entries in the file

    def path(self) -> str:
        """Append new entries to the file, and return its path; empty if the file cannot be written. Blocks."""
        # All ancestors of a written entry are already written, so only the newest part of the branch is new.
        path = self._session.state.conversation.path
        new = [*takewhile(lambda entry: entry.id not in self._written, reversed(path))][::-1]
        try:
            return self._append(new)
        except OSError:  # hooks must run even if the disk is full
            self._written.clear()  # so that the next call writes the whole file again
            return ""

    def _append(self, entries: Sequence[Entry]) -> str:
        session = self._session
        if session.private_folder is not None:
            make_private_folder(session.private_folder)
        self._folder = self._folder or TemporaryDirectory(prefix="transcript-", dir=session.private_folder)
        file = Path(self._folder.name) / f"{session.id}.jsonl"
        cwd, mask = session.runtime.calls.workspace.cwd, session.runtime.calls.services.mask
        with file.open("a" if self._written else "w", encoding="utf-8") as transcript:
            for entry in entries:
                line = _transcript_line(entry, session.id) | {"cwd": str(cwd), "version": __version__}
                for block in line.get("message", {}).get("content", ()):
                    if block["type"] == "tool_use":
                        block["name"], block["input"] = claude_code_call(block["name"], block["input"], cwd)
                masked = mask.value(line)[0] if mask else line  # without the number of secrets
                transcript.write(msgspec.json.encode(masked).decode() + "\n")
        self._written.update(entry.id for entry in entries)
        return str(file)


async def import_missing(store: SessionStore, session_id: str, folder: Path, cwd: Path) -> None:
    """Store a transcript's session, if it is not stored yet, so that it can be resumed here. Raises `UsageError`."""
    file = folder / f"{session_id}.jsonl"
    if not file.is_file():
        return
    try:
        await store.load(session_id)
    except NoSession:
        lines = map(msgspec.json.decode, file.read_bytes().splitlines())
        entries = [msgspec.convert(line[_ENTRY_KEY], Entry) for line in lines if _ENTRY_KEY in line]
        if not entries:
            raise UsageError(f"{file} was not written by agentcli, so it cannot be resumed.") from None
        log = await store.create(cwd=cwd, session_id=session_id)
        new_ids: dict[str, str] = {}  # by the id in the transcript
        for entry in entries:
            encoded = msgspec.json.encode(entry.body).decode()
            encoded = _UUID.sub(lambda found: new_ids.get(found[0], found[0]), encoded)  # references to other entries
            # An entry whose parent is not in the transcript follows the one before it.
            parent_id = None if entry.parent_id is None else new_ids.get(entry.parent_id, NEWEST)
            (stored,) = log.append(msgspec.json.decode(encoded, type=Body), parent_id=parent_id).entries
            new_ids[entry.id] = stored.id
        await log.close()
