"""Tries a command on a stand-in of the workspace; the person then chooses which of its changes stay."""

from __future__ import annotations

from typing import Any

from agentcli.agent.calls.scopes import Call
from agentcli.agent.events import ApprovalRequested, Approve
from agentcli.agent.masking import Mask
from agentcli.errors import ToolError
from agentcli.llm.messages import ToolUse
from agentcli.tools.summary import call_title
from agentcli.tools.tool import Tool, ToolContext, ToolOutput
from agentcli.tools.trial import Kept, Trial, TriedChange


async def try_first(call: Call, tool: Tool, arguments: Any, context: ToolContext) -> ToolOutput:
    """The command's output, and which of its changes were kept. Raises `ToolError`."""
    assert tool.attempt is not None
    trial = await tool.attempt(arguments, context)
    try:
        if not trial.changes:
            return _told(trial, "It was tried first, and changed no file.")
        answer = await call.ask(_request(call.use, trial, call.report.mask), None)
        names = _chosen(answer, trial) if isinstance(answer, Approve) else []
        if not names:
            return _told(trial, "The user tried it and dropped all its changes: no file was changed.", is_error=True)
        return _told(trial, _kept(await trial.keep(names), trial))
    finally:
        await trial.drop()


def _request(call: ToolUse, trial: Trial, mask: Mask | None) -> ApprovalRequested:
    """The changes as hunks: all are kept, some, or none."""
    texts = [_shown(change) for change in trial.changes]
    if mask is not None:
        texts = [mask.text(text) for text in texts]
    count = f"{len(texts)} change{'' if len(texts) == 1 else 's'}"
    return ApprovalRequested(
        call.id,
        call,
        f"Keep {count} of: {call_title(call.name, call.input)}",
        f"tried: {_ending(trial)}",
        "\n".join(texts),
        (),
        tuple(texts),
    )


def _shown(change: TriedChange) -> str:
    return change.diff or f"{change.kind} {change.what} {change.name}\n"


def _ending(trial: Trial) -> str:
    result = trial.result
    return "it ran out of time" if result.timed_out else f"exit code {result.exit_code}"


def _chosen(answer: Approve, trial: Trial) -> list[str]:
    if not answer.allowed or answer.scope == "try":  # what was tried is kept or not; there is no second try
        return []
    return [
        change.name for number, change in enumerate(trial.changes) if answer.hunks is None or number in answer.hunks
    ]


def _kept(kept: Kept, trial: Trial) -> str:
    stayed = set(kept.names)
    conflicts = {conflict.name: conflict.why for conflict in kept.conflicts}
    dropped = [change.name for change in trial.changes if change.name not in stayed and change.name not in conflicts]
    said = [f"The user tried it and kept: {', '.join(kept.names) or 'nothing'}."]
    if dropped:
        said.append(f"Dropped, so not changed: {', '.join(dropped)}.")
    said += [f"Not kept: {name} ({why})." for name, why in conflicts.items()]
    return " ".join(said)


def _told(trial: Trial, what: str, *, is_error: bool = False) -> ToolOutput:
    result = trial.result
    notes = [f"[{_ending(trial)}]"] if result.exit_code or result.timed_out else []
    text = "\n".join(part for part in (result.output.rstrip("\n"), *notes, f"[{what}]") if part)
    structured = {
        "exit_code": result.exit_code,
        "output": result.output,
        "timed_out": result.timed_out,
        "cwd": str(result.cwd or ""),
        "changes": [change.name for change in trial.changes],
    }
    return ToolOutput(text, structured, what.partition(":")[0], is_error=is_error or bool(result.exit_code))


def may_be_tried(tool: Tool, arguments: Any, context: ToolContext) -> bool:
    """Whether a trial can be offered: only for what runs confined, in the foreground. Probes; call it in a thread."""
    if tool.attempt is None or getattr(arguments, "background", False) or getattr(arguments, "unconfined", False):
        return False
    try:
        return not context.workspace.sandbox.why_no_trial()
    except (ToolError, OSError):
        return False
