"""`create_subagent`: lets another agent do a task."""

from __future__ import annotations

from agentcli.agent.calls.scopes import Call
from agentcli.errors import ToolError, UsageError
from agentcli.tools.builtin.arguments import CreateSubagent
from agentcli.tools.tool import ToolOutput


async def run(call: Call, given: CreateSubagent) -> ToolOutput:
    """Raises `ToolError`."""
    if not given.task.strip():
        raise ToolError("The task is empty: say all that the subagent needs to know.", kind="invalid_parameters")
    try:
        agents = call.turn.session.open_agents()
    except UsageError as error:
        raise ToolError(str(error), kind="validation_error") from error
    return await agents.answer(call, given)
