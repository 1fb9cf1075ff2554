"""Has a reply that is no answer yet go on, or be given once more, with a note that says how."""

from __future__ import annotations

from agentcli.agent.turn_log import Turn, add
from agentcli.conversation.entries import reminder
from agentcli.llm import provider as llm
from agentcli.llm.errors import ServerError

MOST_CONTINUATIONS = 3  # of a reply that was cut by length, in a row


def continue_reply(turn: Turn, reply: llm.Done) -> bool:
    """Whether a reply that is no answer yet goes on, with a note that says how (stop reasons of the Messages API)."""
    is_empty = not reply.message.text.strip()
    if reply.stop_reason == "pause_turn":
        return True
    if turn.continuations >= MOST_CONTINUATIONS:
        return False
    if reply.lost_tool_call:
        turn.more_tokens = max(turn.more_tokens, 1) * 2
        note = "Your reply was cut off inside a tool call, which was not run. Make the call again, in smaller parts."
    elif reply.stop_reason in ("max_tokens", "model_context_window_exceeded"):
        note = "Your reply was cut off by its length limit. Go on exactly where it stopped."
    elif reply.stop_reason == "end_turn" and is_empty and turn.continuations == 0:
        note = "Go on: answer with what the results say." if turn.round > 1 else "Your reply was empty: answer now."
    else:
        return False
    turn.continuations += 1
    add(turn, reminder(note))
    return True


def require_answer(turn: Turn, reply: llm.Done) -> None:
    """Raises `ServerError` where a turn would end without a word: that is no success."""
    if reply.message.tool_uses or any(part.strip() for part in (*turn.said, *turn.answer)):
        return
    if reply.stop_reason == "max_tokens":
        raise ServerError(
            "The model reached the limit of its reply before it began to answer: its reasoning took all of it. "
            "Raise tokens.max_output, or lower the effort (--effort, /effort)."
        )
    raise ServerError("The model answered nothing, also when it was asked once more.")


def asks_again(turn: Turn) -> bool:
    """Whether an answer that does not fit the schema that is asked for is to be given once more."""
    schema = turn.runtime.answer_schema
    problem = (
        schema.problem("".join(turn.answer)) if schema is not None and turn.tries_to_fit < schema.most_tries else ""
    )
    if schema is None or not problem:
        return False
    turn.tries_to_fit += 1
    turn.answer.clear()
    add(turn, reminder(schema.again(problem)))
    return True
