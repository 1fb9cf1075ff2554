"""One prompt, one answer: `agentcli -p`, pipes, and the JSON outputs."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from agentcli.agent.commands.command import CommandSet
from agentcli.agent.result import INTERRUPTED_EXIT, AnswerSchema, Demands, ResultBuilder
from agentcli.app import Builder
from agentcli.cli.ending import Ending
from agentcli.cli.options import unshared_stdin
from agentcli.cli.output import warn
from agentcli.cli.session_opener import ConfiguredOpener, extras_from, make_store, session_choice
from agentcli.errors import NoKey, UsageError
from agentcli.frontends.run_end import end_when_idle, ended_jobs, interrupt_on_signals, running_jobs
from agentcli.frontends.screenless import CliPrompt, ScreenlessHost
from agentcli.settings.load import Config


async def answer_once(config: Config, options: argparse.Namespace, prompt: str, ending: Ending) -> int:
    """Answer, and return the exit code. Raises `UserError` for what is wrong before the first request."""
    takes_stream = options.input_format == "stream-json"
    _check(options, takes_stream=takes_stream)
    choice, extras = session_choice(options), extras_from(options)
    if options.json_schema is not None:
        extras = replace(extras, answer_schema=_answer_schema(options.json_schema))
    ending.session_id = choice.new_id or choice.id
    builder = Builder(
        config,
        store=make_store(config, options, warn),
        extras=extras,
        can_ask=takes_stream,
        goes_on=not takes_stream,
        on_notice=warn,
    )
    try:
        session = await builder.build_session(choice)
        ending.unfinished = ResultBuilder(session).unfinished
        typed = "" if options.prompt in (None, "-") else options.prompt
        if choice.how != "new" and not takes_stream and not typed.lstrip().startswith("/"):
            try:
                builder.models.require_key(session.state.model.name)
            except NoKey:
                await session.close()
                raise
        given = CliPrompt(typed, prompt.removeprefix(typed))
        opener = ConfiguredOpener(config, builder)
        knows_commands = options.output_format == "stream-json" or typed.lstrip().startswith("/")
        commands = opener.commands(warn) if knows_commands else CommandSet(())
        host = ScreenlessHost(opener, session, commands, stays_open=takes_stream)
        leaving = asyncio.Event()

        def leave() -> None:
            leaving.set()
            host.interrupt()

        with interrupt_on_signals(leave, at_once=ending.leave_at_once) as received:
            idle = end_when_idle(lambda: host.session, config.settings.limits.idle_s, ending.leave_stuck)
            watching = asyncio.create_task(idle)
            try:
                demands = Demands(options.fail_on_denial, options.require_evidence, extras.answer_schema)
                code = await _answered(host, given, options, leaving, demands=demands)
                ending.has_answered = True
            finally:
                watching.cancel()
                jobs = ended_jobs(running_jobs(host.session))
                await host.session.close()
                if jobs:
                    warn(jobs)
        return 128 + received["signal"] if received and code == INTERRUPTED_EXIT else code
    finally:
        await builder.aclose()


def _check(options: argparse.Namespace, *, takes_stream: bool) -> None:
    if options.resume == "":
        raise UsageError("--resume needs an ID here: `agentcli sessions list` shows them.")
    if takes_stream and options.output_format != "stream-json":
        raise UsageError("--input-format stream-json goes with --output-format stream-json.")
    if takes_stream and options.prompt == "-":
        raise UsageError("Stdin holds either the prompt (-) or the stream: leave out - or --input-format stream-json.")


async def _answered(
    host: ScreenlessHost, given: CliPrompt, options: argparse.Namespace, leaving: asyncio.Event, *, demands: Demands
) -> int:
    """Let the front end that was asked for answer, and return its exit code."""
    if options.output_format == "stream-json":
        from agentcli.frontends.json_stream import Dialogue

        partial = options.include_partial_messages
        dialogue = Dialogue(host, sys.stdout.buffer, partial=partial, demands=demands, leaving=leaving)
        return await dialogue.run(given, unshared_stdin() if options.input_format == "stream-json" else None)
    from agentcli.frontends import print_mode

    if options.output_format == "json":
        return await print_mode.print_json(host, given, out=sys.stdout.buffer, log=sys.stderr, demands=demands)
    verbose = options.verbose
    return await print_mode.print_answer(host, given, out=sys.stdout, log=sys.stderr, verbose=verbose, demands=demands)


def _answer_schema(given: str) -> AnswerSchema:
    """Return the schema of `--json-schema`, which is a file or the JSON itself. Raises `UsageError`."""
    try:
        text = given if given.lstrip().startswith("{") else Path(given).read_text("utf-8")
        return AnswerSchema(msgspec.json.decode(text, type=dict[str, Any]))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"Could not read {given}: {error}.") from error
    except msgspec.MsgspecError as error:
        raise UsageError(f"--json-schema is no JSON object ({error}).") from error
