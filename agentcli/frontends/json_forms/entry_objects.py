"""Makes JSON objects of a session's entries."""

from __future__ import annotations

from typing import Any

from agentcli.agent.result import usage_object
from agentcli.conversation.entries import (
    Assistant,
    Compaction,
    Entry,
    HeadMoved,
    ProviderSwitched,
    Result,
    Retracted,
    Rewound,
    SkillActivated,
    SkillEnded,
    User,
)
from agentcli.llm.wire.anthropic_request import block_to_wire


def reply_or_result(entry: Entry, session_id: str, *, made_by: str | None = None) -> dict[str, Any] | None:
    """The object of a reply, a result or a skill; `made_by` is the call that made the subagent whose entry it is."""
    match entry.body:
        case Assistant() as reply:
            message = {
                "id": entry.id,
                "type": "message",
                "role": "assistant",
                "model": reply.model,
                "content": [block_to_wire(block) for block in reply.content],
                "stop_reason": reply.stop_reason,
                "usage": usage_object(reply.usage),
            }
            return _message("assistant", message, session_id, made_by)
        case Result() as result:
            return _message("user", {"role": "user", "content": [block_to_wire(result.result)]}, session_id, made_by)
        case SkillActivated(id, skill, by):
            return system_object("skill", session_id, id=id, skill=skill.name, by=by, active=True)
        case SkillEnded(id):
            return system_object("skill", session_id, id=id, active=False)
        case _:
            return None


def entry_object(entry: Entry, session_id: str) -> dict[str, Any] | None:
    """As `reply_or_result`, also of what the person said and of what changed the conversation.

    All but replies carry `entry_id`.
    """
    match entry.body:
        case User(content, is_reminder=False):
            message = {"role": "user", "content": [block_to_wire(block) for block in content]}
            return _message("user", message, session_id, None) | {"entry_id": entry.id}
        case Compaction() as done:
            told = {name: getattr(done, name) for name in ("strategy", "trigger", "tokens_before", "tokens_after")}
            return system_object("compact_boundary", session_id, **told, cost_usd=done.cost_usd, entry_id=entry.id)
        case ProviderSwitched(before, after, reason):
            told = {"from": before, "to": after, "reason": reason}
            return system_object("provider_switch", session_id, **told, entry_id=entry.id)
        case Rewound(before):
            return system_object("rewound", session_id, before=before, entry_id=entry.id)
        case HeadMoved(to):
            return system_object("rewound", session_id, after=to, entry_id=entry.id)
        case Retracted(ids):
            return system_object("retracted", session_id, ids=ids, entry_id=entry.id)
        case Result():
            made = reply_or_result(entry, session_id)
            return made | {"entry_id": entry.id} if made else None
        case _:
            return reply_or_result(entry, session_id)


def system_object(subtype: str, session_id: str, **fields: Any) -> dict[str, Any]:
    return {"type": "system", "subtype": subtype, "session_id": session_id, **fields}


def _message(type: str, message: dict[str, Any], session_id: str, made_by: str | None) -> dict[str, Any]:
    return {"type": type, "message": message, "parent_tool_use_id": made_by, "session_id": session_id}
