"""Answers one prompt on stdout: as text, or as one JSON object."""

import sys
import time

from agentcli.agent import events
from agentcli.agent.result import Requirements, ResultBuilder, exit_code, to_json_line, unproven
from agentcli.agent.session import Session
from agentcli.agent.turn_log import PROMPT_REMOVED
from agentcli.conversation.history import counted, shorten
from agentcli.frontends.hosts import CliPrompt, CommandEnded, ScreenlessHost
from agentcli.frontends.printable import PrintableStream, printable

MAX_TASK_CHARS = 80  # of a subagent's task, in its line on stderr


async def print_answer(
    host: ScreenlessHost, cli_prompt: CliPrompt, *, verbose: bool, requirements: Requirements
) -> int:
    """Print an answer or a command's output; return the exit code. Only a terminal sees the answer as it arrives."""
    resolved = await host.resolve_prompt(cli_prompt)
    is_live = sys.stdout.isatty()
    if isinstance(resolved, CommandEnded):
        if resolved.exit_code:
            _log_line(f"agentcli: {resolved.output}")
        elif resolved.output:
            print(printable(resolved.output) if is_live else resolved.output, flush=True)
        return resolved.exit_code
    session = host.session
    printable_stream = PrintableStream()
    titles: dict[str, str] = {}  # of calls, by id
    is_mid_line = False  # True while the terminal shows an unfinished line of the answer
    stream = session.subscribe(has_deltas=is_live)
    session.submit(resolved)
    async for event in stream:
        line = ""  # to be printed to stderr
        match event:
            case _ if event.agent_id != "main":
                line = _subagent_line(event, is_verbose=is_live or verbose)
            case events.TextDelta(text) if is_live:
                print(printable_stream.feed(text), end="", flush=True)
                is_mid_line = True
            case events.TurnEnded() if is_live:
                if rest := printable_stream.close():
                    print(rest, end="")
                    is_mid_line = True
            case events.ToolStarted(id, _, _, title):
                titles[id] = title
            case events.ToolFinished(id, _, result, _, summary) if is_live or verbose:
                mark = "✗" if result.is_error else "✓"
                line = f"{mark} {titles.get(id, '')} · {summary}"
            case events.Retry(number, delay_s, error):
                line = f"{error} Retrying in {delay_s:.0f} s (retry {number})."
            case events.Notice(text):
                line = text
            case events.ProviderSwitched(before, after):
                line = f"Switched from {before} to {after}."
            case events.TurnFailed(error):
                # The run ends here, so the note about the removed prompt would not help.
                _log_line(f"agentcli: {error.removesuffix(PROMPT_REMOVED).rstrip()}", after_text=is_mid_line)
                return exit_code(event, requirements)
            case events.Done():
                value = requirements.value(event)  # with a schema, a pipe gets the JSON value and nothing else
                answer = event.text if value is None else to_json_line(value).decode().strip()
                if not is_live:
                    print(answer, end="\n" if event.text else "", flush=True)
                elif is_mid_line:  # the terminal already shows the answer, but not the end of its line
                    print(flush=True)
                for explanation in _explanations(event, session, requirements):
                    _log_line(explanation)
                return exit_code(event, requirements)
        if line:
            _log_line(line, after_text=is_mid_line)
            is_mid_line = False
    raise AssertionError("a subscription does not end by itself")


def _subagent_line(event: events.Event, *, is_verbose: bool) -> str:
    match event:
        case events.SubagentStarted(id, _, _, task) if is_verbose:
            return f"{id}: {shorten(' '.join(task.split()), MAX_TASK_CHARS)}"
        case events.SubagentEnded(id, _, end, turns) if is_verbose:
            return f"{id} {end} after {counted(turns, 'round')}"
        case events.Notice(text):
            return text
    return ""


async def print_json(host: ScreenlessHost, cli_prompt: CliPrompt, *, requirements: Requirements) -> int:
    """Answer the prompt, or run its slash command; print the result as one JSON object, and return the exit code."""
    from agentcli.frontends.json_output import write_line  # takes 3 ms, and text answers do not need it

    started = time.monotonic()
    resolved = await host.resolve_prompt(cli_prompt)
    session = host.session
    result = ResultBuilder(session, started)
    if isinstance(resolved, CommandEnded):
        write_line(result.build(resolved.end))
        return resolved.exit_code
    stream = session.subscribe(has_deltas=False)
    session.submit(resolved)
    async for event in stream:
        result.note(event)
        match event:
            case events.Retry(error=text) | events.Notice(text):
                _log_line(text)
            case events.Done() | events.TurnFailed():
                write_line(result.build(event, requirements))
                return exit_code(event, requirements)
    raise AssertionError("a subscription does not end by itself")


def _explanations(done: events.Done, session: Session, requirements: Requirements) -> list[str]:
    """Return lines that say why the turn ended early, was denied something, or does not meet the requirements."""
    max_turns = session.runtime.limits.max_turns
    reasons = {
        "max_turns": f"Stopped at the limit of {max_turns} turns. Raise --max-turns, or resume with --continue.",
        "max_tokens": "The answer was cut off by its length limit.",
        "interrupted": "Interrupted. The session is saved; resume it with --continue.",
    }
    lines = [reasons[done.reason]] if done.reason in reasons else []
    for kind, why in (
        ("denied", "Denied because no one could approve it"),
        ("dropped", "Changes discarded because no one could approve them"),
    ):
        if names := ", ".join(sorted({denial.call.name for denial in done.denials if denial.kind == kind})):
            lines.append(f"{why}: {names}. To allow it, use --allow or --permission-mode.")
    if why := requirements.schema_problem(done):
        lines.append(f"The answer does not match the schema: {why}")
    for claim in unproven(done) if requirements.evidence else ():
        verdict = "The log says otherwise" if claim.verdict == "refuted" else "Not verified"
        lines.append(f"{verdict} ({claim.kind}): {' '.join(claim.text.split())}")
    return lines


def _log_line(text: str, *, after_text: bool = False) -> None:
    """Print a line to stderr; with `after_text` first end the line of a partial answer on the terminal."""
    if after_text:
        print(flush=True)
    print(printable(text), file=sys.stderr, flush=True)
