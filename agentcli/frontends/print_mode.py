"""One prompt in, the answer on stdout: as text, or as one JSON object."""

from __future__ import annotations

import sys
import time
from typing import BinaryIO, TextIO

from agentcli.agent import events
from agentcli.agent.result import Demands, ResultBuilder, exit_code, to_json_line, unproven
from agentcli.agent.session import Session
from agentcli.conversation.history import shortened
from agentcli.frontends.printable import PrintableStream, printable
from agentcli.frontends.screenless import CliPrompt, CommandEnded, ScreenlessHost

LONGEST_TASK = 80  # characters of a subagent's task


async def print_answer(
    host: ScreenlessHost, given: CliPrompt, *, out: TextIO, log: TextIO, verbose: bool, demands: Demands
) -> int:
    """Print an answer or a command's output, into a pipe only when it is whole; gives the exit code."""
    prompt = await host.meant(given)
    if isinstance(prompt, CommandEnded):
        if prompt.is_error:
            _log_line(log, f"agentcli: {prompt.output}")
        elif prompt.output:
            print(printable(prompt.output) if out.isatty() else prompt.output, file=out, flush=True)
        return prompt.exit_code
    session = host.session
    live = out.isatty()
    safe = PrintableStream()
    titles: dict[str, str] = {}
    is_in_text = False
    stream = session.subscribe()
    session.submit(prompt)
    async for event in stream:
        if event.agent_id != "main":
            if told := _subagent_line(event, is_verbose=live or verbose):
                _log_line(log, told, after_text=is_in_text)
            continue
        match event:
            case events.TextDelta(text) if live:
                out.write(safe.feed(text))
                out.flush()
                is_in_text = True
            case events.TurnEnded() if live:
                out.write(safe.close())
                is_in_text = False
            case events.ToolStarted(id, _, _, title):
                titles[id] = title
            case events.ToolFinished(id, _, result, _, summary) if live or verbose:
                mark = "✗" if result.is_error else "✓"
                _log_line(log, f"{mark} {titles.get(id, '')} · {summary}", after_text=live)
            case events.Retry(number, delay_s, error):
                _log_line(log, f"{error} Trying again in {delay_s:.0f} s (retry {number}).")
            case events.Notice(text):
                _log_line(log, text, after_text=is_in_text)
            case events.ProviderSwitched(before, after):
                _log_line(log, f"Went from {before} to {after}.")
            case events.TurnFailed(error):
                _log_line(log, f"agentcli: {error}", after_text=live)
                return exit_code(event, demands)
            case events.Done():
                line_end = "\n" if event.text or live else ""
                value = demands.value(event)  # a pipe gets the JSON value and nothing around it, where one is asked for
                answer = event.text if value is None else to_json_line(value).decode().strip()
                print("" if live else answer, end=line_end, file=out, flush=True)
                _explain(event, session, demands, log)
                return exit_code(event, demands)
            case _:
                pass
    raise AssertionError("a subscription does not end by itself")


def _subagent_line(event: events.Event, *, is_verbose: bool) -> str:
    """A line about a subagent; empty for what is not told of it."""
    match event:
        case events.SubagentStarted(id, _, _, task) if is_verbose:
            return f"{id}: {shortened(' '.join(task.split()), LONGEST_TASK)}"
        case events.SubagentEnded(id, _, end, turns) if is_verbose:
            return f"{id} {end} after {turns} rounds"
        case events.Notice(text):
            return text
        case _:
            return ""


async def print_json(host: ScreenlessHost, given: CliPrompt, *, out: BinaryIO, log: TextIO, demands: Demands) -> int:
    """Print the result object and give the exit code."""
    started = time.monotonic()
    prompt = await host.meant(given)
    session = host.session
    result = ResultBuilder(session, started)
    if isinstance(prompt, CommandEnded):
        out.write(to_json_line(result.build(prompt.end)))
        out.flush()
        return prompt.exit_code
    stream = session.subscribe()
    session.submit(prompt)
    async for event in stream:
        result.note(event)
        match event:
            case events.Retry(error=text) | events.Notice(text):
                _log_line(log, text)
            case events.Done() | events.TurnFailed():
                out.write(to_json_line(result.build(event, demands)))
                out.flush()
                return exit_code(event, demands)
            case _:
                pass
    raise AssertionError("a subscription does not end by itself")


def _explain(done: events.Done, session: Session, demands: Demands, log: TextIO) -> None:
    limit = f"Stopped at the limit of {session.snapshot().max_turns} turns"
    reasons = {
        "max_turns": f"{limit}: raise --max-turns, or go on with --continue.",
        "max_tokens": "The answer was cut off by its length limit.",
        "interrupted": "Interrupted; what was said is kept: go on with --continue.",
    }
    if done.reason in reasons:
        _log_line(log, reasons[done.reason])
    for kind, said in (
        ("denied", "Denied without anybody to ask"),
        ("dropped", "Changes dropped, as nobody was asked"),
    ):
        if names := ", ".join(sorted({denial.call.name for denial in done.denials if denial.kind == kind})):
            _log_line(log, f"{said}: {names}. Allow it with --allow or --permission-mode.")
    if why := demands.misfit(done):
        _log_line(log, f"The answer does not fit the schema: {why}")
    for claim in unproven(done) if demands.evidence else ():
        how = "The log says otherwise" if claim.verdict == "refuted" else "Not verified"
        _log_line(log, f"{how} ({claim.kind}): {' '.join(claim.text.split())}")


def _log_line(log: TextIO, text: str, *, after_text: bool = False) -> None:
    if after_text and log is sys.stderr and sys.stdout.isatty():
        print(file=sys.stdout, flush=True)
    print(printable(text), file=log, flush=True)
