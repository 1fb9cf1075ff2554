"""Shows the newest part of a stored conversation."""

from __future__ import annotations

from agentcli.agent.events import ToolFinished
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Assistant, Result, Unreadable, User
from agentcli.frontends.terminal.output.live import message_text
from agentcli.frontends.terminal.output.turn_view import TurnView
from agentcli.llm.messages import Text, ToolResult, ToolUse
from agentcli.tools.summary import call_title

MOST_ENTRIES = 30


def replay(conversation: Conversation, view: TurnView) -> None:
    shown = [e for e in conversation.path if isinstance(e.body, User | Assistant | Result | Unreadable)]
    shown = [e for e in shown if not (isinstance(e.body, User) and e.body.is_reminder)]
    if len(shown) > MOST_ENTRIES:
        view.line(f"… {len(shown) - MOST_ENTRIES:,} earlier entries", "muted")
    calls: dict[str, ToolUse] = {}
    for entry in shown[-MOST_ENTRIES:]:
        match entry.body:
            case User(content):
                view.prompt(message_text(content))
            case Assistant(content):
                calls |= {block.id: block for block in content if isinstance(block, ToolUse)}
                for block in content:
                    if isinstance(block, Text) and block.text.strip():
                        view.markdown(block.text)
            case Result(result, name) as ended:
                call = calls.get(result.tool_use_id)
                facts = (ended.duration_ms, ended.summary, ended.structured, ended.error_kind)
                finished = ToolFinished(result.tool_use_id, name, result, *facts, answer=ended.answer)
                view.call(finished, view.title(call_title(name, call.input if call else {})))
            case Unreadable(error):
                view.line(f"[{error}]", "warning")
            case _:
                pass
    for id in conversation.open_calls:  # the program ended while they ran
        if call := calls.get(id):
            outcome = "cut off; its outcome is unknown"
            cut = ToolFinished(id, call.name, ToolResult(id, "", is_error=True), 0.0, outcome)
            view.call(cut, view.title(call_title(call.name, call.input)))
    if shown:
        view.gap()
