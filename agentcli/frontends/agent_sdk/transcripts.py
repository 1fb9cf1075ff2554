"""Writes the entries of a session for a program that stores transcripts itself, and opens a session from these."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from agentcli.agent.interfaces import NEWEST, SessionStore
from agentcli.conversation.entries import Body, Entry
from agentcli.errors import StorageError, UsageError
from agentcli.frontends.json_output import entry_object
from agentcli.settings.files import home_of

_UUID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OWN = "agentcli"  # the key of a line with the whole entry
_MAX_KEY = 200  # characters; longer ones of Claude Code end with a hash


def transcript_folder(environment: Mapping[str, str], cwd: Path) -> Path:
    """Return the folder in which Claude Code would write transcripts, which the SDKs know."""
    home = Path(environment.get("CLAUDE_CONFIG_DIR") or home_of(environment) / ".claude")
    return home / "projects" / re.sub(r"[^a-zA-Z0-9]", "-", str(cwd.resolve()))[:_MAX_KEY]


def mirror_object(entry: Entry, session_id: str, folder: Path) -> dict[str, Any]:
    """Return the object that carries an entry to the program's store, as a line of a transcript."""
    shown = entry_object(entry, session_id) or {}
    line = {
        "type": shown["type"] if "message" in shown else "system",
        "uuid": entry.id,
        "parentUuid": entry.parent_id,
        "sessionId": session_id,
        "timestamp": datetime.fromtimestamp(entry.time, UTC).isoformat(),
        "isSidechain": False,
        _OWN: msgspec.to_builtins(entry),
    }
    if "message" in shown:
        line["message"] = shown["message"]
    return {"type": "transcript_mirror", "filePath": str(folder / f"{session_id}.jsonl"), "entries": [line]}


async def import_missing(store: SessionStore, session_id: str, folder: Path, cwd: Path) -> None:
    """Store the session of a transcript that lies in the folder, unless it is stored already.

    The entries get new ids. Raises `UsageError` for a transcript that agentcli has not written.
    """
    file = folder / f"{session_id}.jsonl"
    if not file.is_file():
        return
    try:
        await store.load(session_id)
    except StorageError:  # there is none
        lines = map(msgspec.json.decode, file.read_bytes().splitlines())
        entries = [msgspec.convert(line[_OWN], Entry) for line in lines if _OWN in line]
        if not entries:
            raise UsageError(f"{file} was not written by agentcli, so it cannot be resumed.") from None
        log = await store.create(cwd=cwd, session_id=session_id)
        ids: dict[bytes, bytes] = {}  # the new ones by those in the transcript
        for entry in entries:
            encoded = _UUID.sub(lambda found: ids.get(found[0], found[0]), msgspec.json.encode(entry.body))
            parent = entry.parent_id and ids.get(entry.parent_id.encode(), NEWEST.encode()).decode()
            (stored,) = log.append(msgspec.json.decode(encoded, type=Body), parent_id=parent).entries
            ids[entry.id.encode()] = stored.id.encode()
        await log.close()
