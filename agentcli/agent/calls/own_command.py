"""Runs shell commands that the person types: at once, unconfined, and told to the model when that is meant."""

from __future__ import annotations

import asyncio
import os
from signal import SIGINT

from agentcli.agent.calls.model import SessionCalls
from agentcli.agent.calls.report import Report
from agentcli.agent.events import Emit
from agentcli.conversation.entries import Body, ContextNote, Result, User
from agentcli.errors import ToolError
from agentcli.llm.messages import Text, ToolUse
from agentcli.tools.builtin import bash
from agentcli.tools.tool import ToolContext

OWN_CALL = "own_"  # the ids of such calls begin so: they outlive a turn


async def run_own_command(calls: SessionCalls, command: str, emit: Emit) -> Result:
    """Run it, with the events of a call, and return its result. Cancelled, it ends with what had come by then."""
    call = ToolUse(f"{OWN_CALL}{os.urandom(6).hex()}", "bash", {"command": command})
    report = Report(call, emit, calls.services.mask)
    report.is_running = True
    report.start()
    try:
        await calls.services.know_secrets()
        with calls.history.detach_sign() as sign:
            context = ToolContext(calls.workspace, call.id, report.show, sign)
            output = await bash.run_own(command, context)
        await calls.services.know_secrets(is_changed=True)
        report.finish(output)
    except ToolError as error:
        report.fail(error)
    except OSError as error:
        report.fail(ToolError(f"The command failed: {error}.", kind="resource_error"))
    except asyncio.CancelledError:
        report.interrupt()
    assert report.result is not None
    return report.result


async def run_in_terminal(calls: SessionCalls, command: str, terminal: str) -> str:
    """Run a command in a terminal, given by its path; return what to add to its output, such as an exit code."""
    context = ToolContext(calls.workspace, f"{OWN_CALL}{os.urandom(6).hex()}")
    told = str((await bash.run_own(command, context, terminal=terminal)).content)
    return told.replace(f"[ended by signal {int(SIGINT)}]", "[interrupted by the user]")


def own_command_entry(command: str, output: object, *, to_model: bool) -> Body:
    """The entry of a command: a note for the model, which has not asked for it, or one that it is not told."""
    text = f"<bash-input>{command}</bash-input>\n<bash-output>{output}</bash-output>"
    return User((Text(text),), is_reminder=True) if to_model else ContextNote(text)
