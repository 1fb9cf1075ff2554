"""Reads from a conversation's log how an attempt went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from agentcli.agent.events import Done, TurnFailed
from agentcli.conversation.entries import Assistant, Compaction, Entry, Result
from agentcli.conversation.evidence.verdicts import Record
from agentcli.conversation.turns import calls_in

End = Done | TurnFailed


def measures(entries: Sequence[Entry], ends: Sequence[End], cwd: str) -> dict[str, Any]:
    """The fields of an `Outcome` that the log and the ends of the turns tell."""
    results = [entry.body for entry in entries if isinstance(entry.body, Result)]
    replies = [entry.body for entry in entries if isinstance(entry.body, Assistant)]
    claims = Counter(claim.verdict for end in ends if isinstance(end, Done) for claim in end.claims)
    return {
        "turns": len(replies),
        "tools": dict(Counter(result.name for result in results)),
        "tool_errors": dict(Counter(result.name for result in results if result.result.is_error)),
        "verified": is_verified(entries, cwd),
        "claims": dict(claims),
        "compactions": sum(isinstance(entry.body, Compaction) for entry in entries),
        "prefix": replies[-1].prefix if replies else "",
        "answered_by": f"{replies[-1].provider}/{replies[-1].model}" if replies else "",
    }


def is_verified(entries: Sequence[Entry], cwd: str) -> bool:
    """True if tests or another check passed, and no source file was changed after that."""
    record = Record(entries, cwd)
    return any(run.passed and not record.is_stale(run.at) for run in record.runs)


def record_for_check(entries: Sequence[Entry], ends: Sequence[End]) -> dict[str, Any]:
    """What a check is told of the attempt; see `checking/eval_check.py`."""
    results = {entry.body.result.tool_use_id: entry.body for entry in entries if isinstance(entry.body, Result)}
    calls = [call for entry in entries if isinstance(entry.body, Assistant) for call in calls_in(entry.body)]
    last = ends[-1] if ends else None
    return {
        "answer": last.text if isinstance(last, Done) else "",
        "calls": [
            {
                "name": call.name,
                "input": call.input,
                "is_error": results[call.id].result.is_error,
                "content": results[call.id].result.text,
            }
            for call in calls
            if call.id in results
        ],
        "compactions": sum(isinstance(entry.body, Compaction) for entry in entries),
    }
