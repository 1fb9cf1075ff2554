"""Shortens single entries: the beginning stays, and the number under which `recall` gives the rest."""

from __future__ import annotations

from typing import Any

from agentcli.conversation.entries import Assistant, Body, Result, User
from agentcli.conversation.turns import Step, text_of
from agentcli.llm.messages import ToolResult
from agentcli.settings.structs import CompactionSettings
from agentcli.tools.summary import call_title

LONGEST_ERROR = 500  # characters
_MARK = 20  # characters that a mark takes, so that cutting less would save nothing


def stub_of(step: Step, turn: int, settings: CompactionSettings) -> str | None:
    """The text in place of an old entry's own; None where it is short enough as it is. Notes become empty."""
    match step.entry.body:
        case User(is_reminder=True):
            return ""
        case Result(result):
            most = max(settings.result_chars, LONGEST_ERROR) if result.is_error else settings.result_chars
            return cut(result.text, most, step, turn) if len(result.text) > most or _has_media(result) else None
        case Assistant() as reply:
            return cut(text_of(reply), settings.message_chars, step, turn)
        case _:
            return None


def cut(text: str, most: int, step: Step, turn: int) -> str:
    """The first characters, then the turn and the number by which the rest is recalled."""
    return text if len(text) <= most + _MARK else f"{text[:most].rstrip()}… [turn {turn} #{step.number}]"


def line_of(
    step: Step, calls: dict[str, dict[str, Any]], settings: CompactionSettings, *, most_error: int = LONGEST_ERROR
) -> str:
    """A call and what came of it, in a line; an error keeps so many characters."""
    body = step.entry.body
    assert isinstance(body, Result)
    title = call_title(body.name, calls.get(body.result.tool_use_id, {}), most_error)
    if body.result.is_error:
        return f"- {title} FAILED: {' '.join(body.result.text[:most_error].split())} [#{step.number}]"
    said = body.summary or " ".join(body.result.text[: settings.result_chars].split())
    return f"- {title}: {said[: settings.result_chars]} [#{step.number}]"


def is_failure(body: Body) -> bool:
    return isinstance(body, Result) and body.result.is_error


def _has_media(result: ToolResult) -> bool:
    return not isinstance(result.content, str)
