"""Checks the claims of an answer against what was run and changed."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from functools import partial
from pathlib import Path

from agentcli.agent.runtime import Turn
from agentcli.conversation.entries import Entry
from agentcli.conversation.evidence import Claim
from agentcli.conversation.file_changes import real_path
from agentcli.errors import ToolError
from agentcli.tools.workspace import Workspace

log = logging.getLogger(__name__)

# Every claim has one of these in it: the outcome of a check, what became of a file, or a name.
_MAY_CLAIM = re.compile(
    r"pass|fail|creat|wrote|written|generat|produc|sav|add|introduc|delet|remov|chang|modif|touch|edit|updat|fix|\bran\b|"
    r"execut|lint|buil|compil|clean|green|succe|happy|issue|error|exit|works|\bOK\b|[✅❌]|`[^`]+`|\w\.\w|file",
    re.IGNORECASE,
)
_MAX_FILE_BYTES = 10_000_000


async def check_answer(answer: str, turn: Turn) -> tuple[Claim, ...]:
    """Return the claims of an answer, each with a verdict; the work is done in a thread."""
    if not _MAY_CLAIM.search(answer):
        return ()
    try:
        return await asyncio.to_thread(_check_claims, answer, list(turn.state.conversation.path), turn)
    except Exception:  # the answer stays valid when its check fails; nothing of it is verified then
        log.exception("the claims of an answer could not be checked")
        return (Claim("The claims of this answer could not be checked.", "unchecked", "unverified"),)


def _check_claims(answer: str, path: list[Entry], turn: Turn) -> tuple[Claim, ...]:
    # These take 40 ms to import, and only an answer that may claim something needs them.
    from agentcli.conversation.evidence.claims import find_claims
    from agentcli.conversation.evidence.verdicts import Record, check_claims

    services = turn.runtime.calls.services
    cwd, content_id = str(services.workspace.real_cwd), partial(_content_id, services.workspace)
    record = Record(path, cwd, content_id, is_complete=turn.runtime.calls.recording.checkpoints is not None)
    return tuple(check_claims(find_claims(answer), record))


def _content_id(workspace: Workspace, stored: str) -> str | None:
    """Return the id of what a file holds now, as snapshots give it; empty if it is gone, None if that is unknown."""
    try:
        status = workspace.look(Path(real_path(stored)))
        if not status.is_usable:
            return None
        if not status.is_there:
            return ""
        if status.kind != "file" or status.size > _MAX_FILE_BYTES:
            return None
        with workspace.sandbox.read(status.real) as file:
            content = file.read()
    except (ToolError, OSError):
        return None
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
