"""Shell commands that the person types: run at once, shown like a call, and told to the model when that is meant."""

from __future__ import annotations

import asyncio
import os

from agentcli.agent.events import Emit
from agentcli.agent.report import Report
from agentcli.agent.tool_calls import CallRunner, know_secrets
from agentcli.conversation.entries import Body, ContextNote, Result, User
from agentcli.errors import ToolError
from agentcli.llm.messages import Text, ToolUse
from agentcli.tools.builtin import bash
from agentcli.tools.builtin.arguments import Bash
from agentcli.tools.tool import ToolContext

OWN_CALL = "own_"  # the ids of such calls begin so: they outlive a turn


async def run_own_command(runner: CallRunner, command: str, emit: Emit) -> Result:
    """What came of it, told by the events of a call. Cancelled, it ends with what had come by then."""
    call = ToolUse(f"{OWN_CALL}{os.urandom(6).hex()}", "bash", {"command": command})
    done: dict[str, Result] = {}
    report = Report(call, emit, done, mask=runner.mask, is_running=True)
    report.start()
    try:
        await know_secrets(runner)
        with runner.detachable() as sign:
            context = ToolContext(runner.workspace, call.id, report.show, sign)
            output = await bash.run(Bash(command, timeout_ms=bash.LONGEST_TIMEOUT_MS), context)
        await know_secrets(runner, is_changed=True)
        report.finish(output)
    except ToolError as error:
        report.fail(error)
    except OSError as error:
        report.fail(ToolError(f"The command failed: {error}.", kind="resource_error"))
    except asyncio.CancelledError:
        report.interrupt()
    return done[call.id]


def own_command_entry(command: str, result: Result, *, to_model: bool) -> Body:
    """The entry of a command: a note for the model, which has not asked for it, or one that it is not told."""
    text = f"<bash-input>{command}</bash-input>\n<bash-output>{result.result.content}</bash-output>"
    return User((Text(text),), is_reminder=True) if to_model else ContextNote(text)
