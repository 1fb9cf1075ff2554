"""Checks the claims of a finished answer against the log of its session and the files as they are now."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from functools import partial
from pathlib import Path

from agentcli.agent.turn_log import Turn
from agentcli.conversation.claim import Claim
from agentcli.conversation.entries import Entry, Result
from agentcli.conversation.file_changes import real_path
from agentcli.errors import ToolError
from agentcli.tools.sandbox import Files

log = logging.getLogger(__name__)

# Something that every claim has in it: a path, a number, or the word for a check or its outcome.
_MAY_CLAIM = re.compile(
    r"[`/\d✅❌]|\w\.\w|file|test|suite|spec|lint|buil|compil|check|pass|fail|chang|modif|touch|edit|everything|green|"
    r"clean|happy|issue|error|succe",
    re.IGNORECASE,
)
_LARGEST_LOOKED_AT = 10_000_000  # bytes


# Where nothing was called an answer says what it did only by one of these.
_MAY_LIE = re.compile(
    r"\b(pass|fail|creat|wrote|written|add|delet|remov|updat|chang|modif|edit|fix|lint|buil|compil|ran\b|run|clean|green|"
    r"succe)|[✅❌]",
    re.IGNORECASE,
)


async def claims_of(answer: str, turn: Turn) -> tuple[Claim, ...]:
    """The claims of an answer with a verdict on each; the work is done in a thread."""
    path = turn.state.conversation.path
    has_calls = any(isinstance(entry.body, Result) for entry in path)
    if not (_MAY_CLAIM if has_calls else _MAY_LIE).search(answer):
        return ()
    try:
        return await asyncio.to_thread(_checked, answer, list(path), turn)
    except Exception:  # the answer stands whatever a text does to its check; nothing of it is verified then
        log.exception("the claims of an answer could not be checked")
        return (Claim("The claims of this answer could not be checked.", "unchecked", "unverified"),)


def _checked(answer: str, path: list[Entry], turn: Turn) -> tuple[Claim, ...]:
    # It takes 40 ms to import, and only an answer that may claim something needs it.
    from agentcli.conversation.evidence import verdicts

    services = turn.runtime.calls.services
    workspace = services.workspace
    claims: list[Claim] = verdicts.checked_claims(
        answer,
        path,
        cwd=str(workspace.real_cwd),
        look=partial(_content_id, workspace.sandbox),
        is_recorded=services.checkpoints is not None,
    )
    return tuple(claims)


def _content_id(files: Files, stored: str) -> str | None:
    """The id of what a file holds now, as checkpoints give it; empty if it is gone, None if that cannot be told."""
    try:
        path = files.validate_path(Path(real_path(stored)), "read")
        status = files.status(path)
        if status is None:
            return ""
        if status.kind != "file" or status.size > _LARGEST_LOOKED_AT:
            return None
        with files.read(path) as file:
            content = file.read()
    except (ToolError, OSError):
        return None
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
