"""`ask_user`: asks the person a question, with answers to choose from or in their own words."""

from __future__ import annotations

from agentcli.agent.calls.model import NOBODY_LEFT, Call
from agentcli.agent.events import Question
from agentcli.agent.ops import Approve
from agentcli.errors import ToolError
from agentcli.tools.builtin.toolset import AskUser
from agentcli.tools.tool import ToolOutput

_NOBODY = "Nobody can be asked here: decide it yourself, and say in your answer what you assumed."


async def run(call: Call, given: AskUser) -> ToolOutput:
    """Raises `ToolError`."""
    if not given.question.strip():
        raise ToolError("The question is empty.", kind="invalid_parameters")
    if call.turn.session.ask is None:
        return ToolOutput(_NOBODY, summary="nobody can be asked")
    question = Question(call.use.id, given.question.strip(), call=call.use, options=given.options or ())
    answer = await call.ask(question, None)
    if not isinstance(answer, Approve) or answer.comment == NOBODY_LEFT:
        return ToolOutput(_NOBODY, summary="nobody could be asked")
    if not answer.allowed or not answer.comment.strip():
        said = f": {answer.comment}" if answer.comment.strip() else "; decide it yourself, or leave it out"
        return ToolOutput(f"The user did not answer{said}.", summary="not answered")
    return ToolOutput(answer.comment, {"answer": answer.comment}, answer.comment)
